"""The base directory of a user: the private place in /dev/shm that holds all its run directories.

Owns: its mode and owner, and the lock under which run directories come and go. Never knows: what
is in a run directory. /dev/shm is writable for everyone, so a base that is not ours alone may have
been laid there to be trusted: it is refused, for reading too.
"""

import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ipc.errors import ForeignDirectoryError, RunDirectoryError

LOCK_TIMEOUT_MS = 10_000
_LOCK_RETRY_MS = 5


def default_base() -> Path:
    """Return the base directory of this user."""
    return Path(f"/dev/shm/headrace-{os.getuid()}")


@contextmanager
def locked(base: Path, *, create: bool) -> Iterator[None]:
    """Hold the base directory alone, making it if asked.

    Raises ForeignDirectoryError; FileNotFoundError if it does not exist and shall not be made;
    RunDirectoryError if another process keeps the lock for too long.
    """
    fd = _lock(base, create=create)
    try:
        yield
    finally:
        os.close(fd)


def _lock(base: Path, *, create: bool) -> int:
    """Return a locked fd of the directory that `base` names.

    The last engine may remove the base while we wait for its lock; then the path names another
    one, or none, and we begin again.
    """
    deadline_ns = time.monotonic_ns() + LOCK_TIMEOUT_MS * 1_000_000
    while time.monotonic_ns() < deadline_ns:
        if create:
            _make_base(base)
        fd = _try_lock(base, may_vanish=create)
        if fd is not None:
            return fd
        time.sleep(_LOCK_RETRY_MS / 1000)
    raise RunDirectoryError(f"another process has held {base} for {LOCK_TIMEOUT_MS} ms: try again")


def _try_lock(base: Path, *, may_vanish: bool) -> int | None:
    try:
        fd = _open_base(base)
    except FileNotFoundError:
        if may_vanish:
            return None
        raise
    with suppress(BlockingIOError):  # somebody else holds it
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _names_this(base, fd):
            return fd
    os.close(fd)
    return None


def _make_base(base: Path) -> None:
    try:
        base.mkdir(mode=0o700)
    except FileExistsError:
        return
    except OSError as error:
        raise RunDirectoryError(f"cannot make {base}: {error.strerror}") from error


def is_ours(base: Path) -> bool:
    """Return whether the base exists; raises ForeignDirectoryError if it is not private to us."""
    try:
        os.close(_open_base(base))
    except FileNotFoundError:
        return False
    return True


def _open_base(base: Path) -> int:
    """Open the base directory; raises ForeignDirectoryError, FileNotFoundError."""
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


def sweep_leftovers(base: Path) -> None:
    """Delete what a claim or a removal left half done; both hold the lock, so it is nobody's."""
    for path in base.iterdir():
        if path.name.startswith((".new-", ".dead-")):
            _delete_files(path)


def delete_tree(path: Path) -> None:
    """Take the directory away in one step, then delete its files."""
    dead = path.parent / f".dead-{secrets.token_hex(8)}"
    path.rename(dead)
    _delete_files(dead)


def _delete_files(path: Path) -> None:
    """Delete a tree; files may vanish under our hands, as when a dying child unlinks its socket."""
    while path.exists():
        with suppress(FileNotFoundError):
            shutil.rmtree(path)


def remove_if_empty(base: Path) -> None:
    """Remove the base unless other engines live in it."""
    if not any(base.iterdir()):
        base.rmdir()
