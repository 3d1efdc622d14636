"""The run directory: where a running engine keeps its memory, sockets and papers.

Owns: /dev/shm/headrace-<uid>/<name>/ (0700), every file name in it, and the question who may use
the name. Never knows: what the files hold, except `owner.json`, `ports.json` and `admin.key`.

    base   headrace-<uid>   of this user, mode 0700, no symlink: else ForeignDirectoryError
    claim  under a flock of the base: a live owner → RunDirectoryBusyError; directories of the dead,
           of any name, are moved away and deleted (one killed together with its janitor may never
           come back under its name); a new one appears by one rename, `owner.json` already in it
    alive  a process with the owner's pid and start time, in the same boot
    remove under the same flock and only if `owner.json` is still ours, so that the janitor of a
           dead engine never deletes the directory of its successor; an empty base goes too
"""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ipc.base_directory import (
    default_base,
    delete_tree,
    is_ours,
    locked,
    remove_if_empty,
    sweep_leftovers,
)
from ipc.errors import (
    EngineNotFoundError,
    ForeignDirectoryError,
    RunDirectoryBusyError,
    RunDirectoryError,
)
from ipc.owner import Owner, is_alive, owner_of

MAX_NAME_LENGTH = 32
MAX_SOCKET_PATH_BYTES = 107  # sun_path less its final zero
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)


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


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """One engine's directory: `claim` (owner), `find` (tools) or `attach` (children)."""

    path: Path
    owner: Owner

    @classmethod
    def claim(cls, name: str, base: Path | None = None) -> "RunDirectory":
        """Make the directory of engine `name` for this process, sweeping a dead engine's.

        Raises RunDirectoryBusyError, ForeignDirectoryError; RunDirectoryError for a bad name.
        """
        path = _checked_path(name, base or default_base())
        owner = owner_of(os.getpid())
        assert owner is not None
        with locked(path.parent, create=True):
            _sweep_dead(path)
            _sweep_dead_neighbours(path.parent)
            sweep_leftovers(path.parent)
            fresh = path.parent / f".new-{secrets.token_hex(8)}"
            fresh.mkdir(mode=0o700)
            _write_private(fresh / "owner.json", msgspec.json.encode(owner))
            fresh.rename(path)
        return cls(path, owner)

    @classmethod
    def find(cls, name: str, base: Path | None = None) -> "RunDirectory":
        """Return the directory of the live engine `name`; raises EngineNotFoundError."""
        path = _checked_path(name, base or default_base())
        owner = _read_owner(path) if is_ours(path.parent) else None
        if owner is None or not is_alive(owner):
            others = (each.name for each in list_engines(path.parent) if each.is_alive)
            raise EngineNotFoundError(name, tuple(others))
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
            with locked(self.path.parent, create=False):
                if _read_owner(self.path) != self.owner:
                    return False
                delete_tree(self.path)
                remove_if_empty(self.path.parent)
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

    def ranks(self, replica: int, epoch: int) -> Path:
        """Where the ranks of a replica meet; each instance of the group has a place of its own."""
        return self.path / f"ranks.{replica}.{epoch}"

    def outputs(self, tokenizer: int) -> Path:
        """Ring scheduler → tokenizer."""
        return self.path / f"outputs.{tokenizer}"

    def board(self, child_id: str) -> Path:
        """Page of a child."""
        return self.path / f"board.{child_id}"

    def log(self, child_id: str) -> Path:
        """Return the file with the last log lines of a process."""
        return self.path / f"log.{child_id}"

    def stacks(self, child_id: str) -> Path:
        """Return the file to which a process writes its stacks when it is asked to."""
        return self.path / f"stacks.{child_id}"

    def last_words(self, child_id: str) -> Path:
        """Return the file in which a process says why it cannot go on."""
        return self.path / f"words.{child_id}"

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
    for path in _entries(base):
        owner = _read_owner(path)
        if owner is not None and not path.name.startswith("."):
            engines.append(EngineInfo(path.name, path, owner.pid, is_alive(owner)))
    return engines


def _entries(base: Path) -> list[Path]:
    """Return what lies in the base, by name; the last engine may take it away as we look."""
    try:
        return sorted(base.iterdir()) if is_ours(base) else []
    except FileNotFoundError:
        return []


def _checked_path(name: str, base: Path) -> Path:
    if not _NAME.fullmatch(name):
        raise RunDirectoryError(
            f"name {name!r} must be 1 to {MAX_NAME_LENGTH} letters, digits, '-' or '_'"
        )
    return base / name


def _sweep_dead(path: Path) -> None:
    """Delete what a dead engine left at `path`; raises RunDirectoryBusyError if it is alive."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir() or path.lstat().st_uid != os.getuid():
        raise ForeignDirectoryError(f"{path} is not a run directory of this user: remove it")
    owner = _read_owner(path)
    if owner is not None and is_alive(owner):
        raise RunDirectoryBusyError(path.name, owner.pid)
    delete_tree(path)


def _sweep_dead_neighbours(base: Path) -> None:
    """Delete what engines of other names left; what has no readable owner is left alone."""
    for path in base.iterdir():
        owner = _read_owner(path)
        if owner is not None and not is_alive(owner):
            delete_tree(path)


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
