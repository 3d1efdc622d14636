"""The run directory: where a running engine keeps its memory, sockets and papers.

Owns: /dev/shm/headrace-<uid>/<name>/ (0700), every file name in it, and the question who may use
the name. Never knows: what the files hold, except `owner.json`, `ports.json` and `admin.key`.

    base   headrace-<uid>   of this user, mode 0700, no symlink: else ForeignDirectoryError
    claim  under a flock of the base: a live owner → RunDirectoryBusyError; a dead one's directory
           is moved away and deleted; a new one appears by one rename, `owner.json` already in it
    alive  a process with the owner's pid and start time, in the same boot
    remove under the same flock and only if `owner.json` is still ours, so that the janitor of a
           dead engine never deletes the directory of its successor; an empty base goes too
"""

import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ipc.errors import (
    EngineNotFoundError,
    ForeignDirectoryError,
    RunDirectoryBusyError,
    RunDirectoryError,
)

MAX_NAME_LENGTH = 32
MAX_SOCKET_PATH_BYTES = 107  # sun_path less its final zero
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)


class Owner(msgspec.Struct, frozen=True):
    """Who runs an engine: a process told apart from all others that ever had its pid."""

    pid: int
    start_ticks: int  # clock ticks since boot, from /proc/PID/stat
    boot_id: str


class Ports(msgspec.Struct, frozen=True):
    """Where the engine listens."""

    http_host: str
    http_port: int
    admin_host: str
    admin_port: int


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """One entry of the base directory."""

    name: str
    path: Path
    pid: int
    is_alive: bool


def default_base() -> Path:
    """Return the base directory of this user."""
    return Path(f"/dev/shm/headrace-{os.getuid()}")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """One engine's directory: `claim` it (owner), `find` it (tools), `attach` to it (children)."""

    path: Path
    owner: Owner

    @classmethod
    def claim(cls, name: str, base: Path | None = None) -> "RunDirectory":
        """Make the directory of engine `name` for this process, sweeping a dead engine's.

        Raises RunDirectoryBusyError, ForeignDirectoryError, RunDirectoryError (bad name, long path).
        """
        path = _checked_path(name, base or default_base())
        owner = owner_of(os.getpid())
        assert owner is not None
        with _locked(path.parent, create=True):
            _sweep_dead(path)
            fresh = path.parent / f".new-{secrets.token_hex(8)}"
            fresh.mkdir(mode=0o700)
            _write_private(fresh / "owner.json", msgspec.json.encode(owner))
            fresh.rename(path)
        return cls(path, owner)

    @classmethod
    def find(cls, name: str, base: Path | None = None) -> "RunDirectory":
        """Return the directory of the live engine `name`; raises EngineNotFoundError."""
        path = _checked_path(name, base or default_base())
        owner = _read_owner(path)
        if owner is None or not is_alive(owner):
            raise EngineNotFoundError(
                f"no engine named {name!r} is running:"
                f" start it with `headrace serve --name {name}`"
            )
        return cls(path, owner)

    @classmethod
    def attach(cls, path: Path) -> "RunDirectory":
        """Return an existing directory, as a child of its owner does; or RunDirectoryError."""
        owner = _read_owner(path)
        if owner is None:
            raise RunDirectoryError(f"{path} is not the run directory of an engine")
        return cls(path, owner)

    def remove(self) -> bool:
        """Delete the directory if it still belongs to `owner`; return whether it did."""
        try:
            with _locked(self.path.parent, create=False):
                if _read_owner(self.path) != self.owner:
                    return False
                _delete(self.path)
                _remove_if_empty(self.path.parent)
        except FileNotFoundError:
            return False
        return True

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.path.name

    def spans(self, tokenizer: int) -> Path:
        """Token ids of all requests of a tokenizer."""
        return self.path / f"spans.{tokenizer}"

    def rows(self, replica: int) -> Path:
        """Running sequences of a replica."""
        return self.path / f"rows.{replica}"

    def plans(self, replica: int) -> Path:
        """Ring scheduler → ranks of a replica."""
        return self.path / f"plans.{replica}"

    def results(self, replica: int) -> Path:
        """Ring rank 0 of a replica → scheduler."""
        return self.path / f"results.{replica}"

    def outputs(self, tokenizer: int) -> Path:
        """Ring scheduler → tokenizer."""
        return self.path / f"outputs.{tokenizer}"

    def board(self, child_id: str) -> Path:
        """Page of a child."""
        return self.path / f"board.{child_id}"

    @property
    def heartbeats(self) -> Path:
        """One line per child."""
        return self.path / "heartbeats"

    @property
    def directory(self) -> Path:
        """The tenant directory."""
        return self.path / "directory"

    def tokenizer_url(self, tokenizer: int) -> str:
        """Inbox of a tokenizer, for http."""
        return self._url(f"tokenizer.{tokenizer}")

    @property
    def scheduler_url(self) -> str:
        """Inbox of the scheduler, for tokenizers and admin workers."""
        return self._url("scheduler")

    @property
    def supervisor_url(self) -> str:
        """Inbox of the supervisor, for admin workers."""
        return self._url("supervisor")

    def admin_url(self, worker: int) -> str:
        """Inbox of an admin worker, for ctl and the dashboard."""
        return self._url(f"admin.{worker}")

    def write_ports(self, ports: Ports) -> None:
        """Say where the engine listens."""
        _write_private(self.path / "ports.json", msgspec.json.encode(ports))

    def read_ports(self) -> Ports:
        """Return where the engine listens; raises RunDirectoryError before it is known."""
        return msgspec.json.decode(self._read("ports.json"), type=Ports)

    def write_admin_key(self) -> str:
        """Make a random admin key and return it."""
        key = secrets.token_urlsafe(32)
        _write_private(self.path / "admin.key", key.encode())
        return key

    def read_admin_key(self) -> str:
        """Return the admin key; raises RunDirectoryError if the operator configured an own one."""
        return self._read("admin.key").decode()

    def _url(self, stem: str) -> str:
        path = os.fsencode(self.path / f"{stem}.sock")
        if len(path) > MAX_SOCKET_PATH_BYTES:
            raise RunDirectoryError(
                f"{self.path} is too long for a socket: {len(path)} bytes, at most"
                f" {MAX_SOCKET_PATH_BYTES}; choose a shorter name"
            )
        return f"ipc://{os.fsdecode(path)}"

    def _read(self, file_name: str) -> bytes:
        try:
            return (self.path / file_name).read_bytes()
        except OSError as error:
            raise RunDirectoryError(f"{self.path / file_name}: {error.strerror}") from error


def list_engines(base: Path | None = None) -> list[EngineInfo]:
    """Return every engine of this user, alive or left behind, by name."""
    base = base or default_base()
    engines = []
    for path in sorted(base.iterdir()) if base.is_dir() else []:
        owner = _read_owner(path)
        if owner is not None and not path.name.startswith("."):
            engines.append(EngineInfo(path.name, path, owner.pid, is_alive(owner)))
    return engines


def owner_of(pid: int) -> Owner | None:
    """Return the identity of a running process, or None if there is no such pid."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = line.rpartition(")")[2].split()  # the name may hold blanks and brackets
    if after_name[0] in "ZX":
        return None
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return Owner(pid, int(after_name[19]), boot_id)


def is_alive(owner: Owner) -> bool:
    """Return whether exactly this process still runs."""
    return owner_of(owner.pid) == owner


def _checked_path(name: str, base: Path) -> Path:
    if not _NAME.fullmatch(name):
        raise RunDirectoryError(
            f"name {name!r} must be 1 to {MAX_NAME_LENGTH} letters, digits, '-' or '_'"
        )
    return base / name


@contextmanager
def _locked(base: Path, *, create: bool) -> Iterator[None]:
    """Hold the base directory alone, and be sure that it is the one that the path names.

    The last engine may remove the base while we wait for its lock; then we take the next one.
    Claims are short, so the wait is too.
    """
    while True:
        fd = _open_base(base, create=create)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _names_this(base, fd):
                yield
                return
        finally:
            os.close(fd)


def _open_base(base: Path, *, create: bool) -> int:
    """Open the base directory, making it if asked; raises ForeignDirectoryError."""
    if create:
        base.mkdir(mode=0o700, exist_ok=True)
    try:
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ForeignDirectoryError(f"{base} is not a directory of this user") from error
    info = os.fstat(fd)
    if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        os.close(fd)
        raise ForeignDirectoryError(
            f"{base} must belong to uid {os.getuid()} with mode 0700,"
            f" not to uid {info.st_uid} with mode {stat.S_IMODE(info.st_mode):04o}"
        )
    return fd


def _names_this(base: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.lstat(base), os.fstat(fd))
    except FileNotFoundError:
        return False


def _sweep_dead(path: Path) -> None:
    """Delete what a dead engine left at `path`; raises RunDirectoryBusyError if it is alive."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir() or path.lstat().st_uid != os.getuid():
        raise ForeignDirectoryError(f"{path} is not a run directory of this user: remove it")
    owner = _read_owner(path)
    if owner is not None and is_alive(owner):
        raise RunDirectoryBusyError(path.name, owner.pid)
    _delete(path)


def _delete(path: Path) -> None:
    """Take the directory away in one step, then delete its files."""
    dead = path.parent / f".dead-{secrets.token_hex(8)}"
    path.rename(dead)
    shutil.rmtree(dead)


def _remove_if_empty(base: Path) -> None:
    try:
        base.rmdir()
    except OSError:  # other engines live here
        return


def _read_owner(path: Path) -> Owner | None:
    try:
        return msgspec.json.decode((path / "owner.json").read_bytes(), type=Owner)
    except (OSError, msgspec.DecodeError):
        return None


def _write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 that appears whole."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
    draft.rename(path)
