"""A piece of memory with a name: the thin wrapper around every mapped file.

Owns: creation, preallocation, mapping. Never knows: what the bytes mean (`ipc.layout`), or where
files belong (`ipc.run_directory`). A file is created by exactly one process, always whole: the room
is checked and then allocated at once, because a sparse file on a full /dev/shm kills with SIGBUS
whoever touches it later, and it gets its name when it is done, so that nobody finds half of one.
"""

import mmap
import os
import tempfile
from pathlib import Path

from ipc.errors import SegmentError, SegmentSpaceError


class Segment:
    """Mapped memory; `buffer` is a memoryview of all its bytes.

    numpy views keep the mapping alive: `close` drops the segment's own reference, and the memory
    is unmapped with the last view.
    """

    __slots__ = ("_buffer", "name", "size_bytes")

    def __init__(self, name: str, mapping: mmap.mmap) -> None:
        self.name = name
        self.size_bytes = len(mapping)
        self._buffer: memoryview | None = memoryview(mapping)

    @classmethod
    def create(cls, path: Path, size_bytes: int, head: bytes = b"") -> "Segment":
        """Make `path` (mode 0600, fully allocated; `head`, then zeros) and map it.

        Raises SegmentError if it exists already, SegmentSpaceError if it does not fit.
        """
        try:
            fd, unnamed = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        except OSError as error:
            raise SegmentError(f"cannot create {path}: {error.strerror}") from error
        try:
            _allocate(fd, path, size_bytes)
            segment = cls(str(path), mmap.mmap(fd, size_bytes))
            segment.buffer[: len(head)] = head
            os.link(unnamed, path)
        except OSError as error:
            raise SegmentError(f"cannot create {path}: {error.strerror}") from error
        finally:
            os.unlink(unnamed)
            os.close(fd)
        return segment

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False) -> "Segment":
        """Map an existing file; raises SegmentError if it cannot be read or is empty."""
        try:
            fd = os.open(
                path, (os.O_RDONLY if readonly else os.O_RDWR) | os.O_CLOEXEC | os.O_NOFOLLOW
            )
        except OSError as error:
            raise SegmentError(f"cannot open {path}: {error.strerror}") from error
        try:
            access = mmap.ACCESS_READ if readonly else mmap.ACCESS_WRITE
            return cls(str(path), mmap.mmap(fd, os.fstat(fd).st_size, access=access))
        except (OSError, ValueError) as error:
            raise SegmentError(f"cannot map {path}: {error}") from error
        finally:
            os.close(fd)

    @classmethod
    def anonymous(cls, size_bytes: int) -> "Segment":
        """Return zeroed memory without a file, for tests and loopback engines."""
        return cls("anonymous", mmap.mmap(-1, size_bytes))

    @property
    def buffer(self) -> memoryview:
        """All bytes, until `close`."""
        if self._buffer is None:
            raise SegmentError(f"{self.name} is closed")
        return self._buffer

    def close(self) -> None:
        """Let go of the memory; a second call does nothing."""
        self._buffer = None


def _allocate(fd: int, path: Path, size_bytes: int) -> None:
    """Give the file all of its bytes, or raise SegmentSpaceError saying how many there are."""
    if size_bytes > available_bytes(fd):
        raise SegmentSpaceError(str(path), size_bytes, available_bytes(fd))
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        raise SegmentSpaceError(str(path), size_bytes, available_bytes(fd)) from error


def available_bytes(place: int | Path) -> int:
    """Return the bytes that the file system of `place` (path or fd) can still give."""
    stats = os.statvfs(place)
    return stats.f_bavail * stats.f_frsize
