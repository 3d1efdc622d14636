"""The audit log: who asked for what, when, and what came of it, as JSON lines in the state
directory.

Owns: one thread that appends, so that a slow disk never delays an answer; a bounded queue before
it; rotation. Never knows: which commands exist. A full disk or queue is loud (the log, `failures`)
and nothing more: the engine serves on.

    audit.jsonl      0600, appended by all admin workers, a line in one write
    audit.N.jsonl    older, 1 the youngest; whoever finds the file too large rotates it, under
                     audit.lock
"""

import fcntl
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import orjson

MAX_FILE_BYTES = 16 * 2**20
MAX_OLD_FILES = 4
MAX_QUEUED_LINES = 1024
MAX_LINE_BYTES = 16_384
CLOSE_TIMEOUT_S = 2.0
COMPLAINT_INTERVAL = 100  # failures between two complaints in the log

logger = logging.getLogger(__name__)


class AuditLog:
    """Appends records; `record` never blocks and never raises."""

    def __init__(
        self,
        directory: Path,
        wall_time: Callable[[], str],
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        """Log into `directory`, made if it is missing; `wall_time` returns the time as ISO 8601
        text."""
        self.failures = 0
        self._path = audit_path(directory)
        self._wall_time = wall_time
        self._max_file_bytes = max_file_bytes
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_QUEUED_LINES)
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    def record(self, entry: Mapping[str, object]) -> None:
        """Queue one record; if the queue is full it is lost, loudly."""
        try:
            self._lines.put_nowait(encode_line({"time": self._wall_time(), **entry}))
        except queue.Full:
            self._complain("the queue is full")

    def close(self) -> None:
        """Write what is queued, within a bound."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=CLOSE_TIMEOUT_S)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._append(line)
            except OSError as error:
                self._complain(error.strerror or str(error))

    def _append(self, line: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o600)
        try:
            written = os.write(fd, line)
            is_large = os.fstat(fd).st_size > self._max_file_bytes
        finally:
            os.close(fd)
        if written != len(line):
            raise OSError("only a part of the line could be written")
        if is_large:
            self._rotate()

    def _rotate(self) -> None:
        lock = self._path.with_name("audit.lock")
        fd = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if self._path.stat().st_size > self._max_file_bytes:
                self._shift()
        finally:
            os.close(fd)

    def _shift(self) -> None:
        files = log_files(self._path.parent)
        for older, younger in pairwise(files):
            with suppress(FileNotFoundError):
                younger.rename(older)

    def _complain(self, cause: str) -> None:
        self.failures += 1
        if self.failures % COMPLAINT_INTERVAL == 1:
            logger.error("audit log %s: %s (%d records lost)", self._path, cause, self.failures)


def audit_path(directory: Path) -> Path:
    """Return the file that is appended to."""
    return directory / "audit.jsonl"


def log_files(directory: Path) -> list[Path]:
    """Return where the files of the log may be, the oldest first."""
    old = [directory / f"audit.{index}.jsonl" for index in range(MAX_OLD_FILES, 0, -1)]
    return [*old, audit_path(directory)]


def iso_time(time_s: float) -> str:
    """Return a time, seconds since 1970, as the log has it; texts are in the order of times."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")


def encode_line(entry: Mapping[str, object]) -> bytes:
    """Return an entry as one JSON line; one that is too long, or nested too deep to be written,
    loses its arguments and result.
    """
    with suppress(orjson.JSONEncodeError):
        line = orjson.dumps(entry, default=str) + b"\n"
        if len(line) <= MAX_LINE_BYTES:
            return line
    cut = {key: value for key, value in entry.items() if key not in ("args", "result")}
    return orjson.dumps({**cut, "truncated": True}, default=str) + b"\n"
