"""What a process leaves in the run directory for whoever looks into a fault: its last log lines, on
a signal where each of its threads is, and its last words when it cannot go on.

Owns: `log.CHILD` (and `log.CHILD.1`), `stacks.CHILD`, `words.CHILD`. Never knows: who reads them.
The stacks are written by the signal handler itself, in C, so a process that hangs in a kernel tells
too.
"""

import faulthandler
import logging
import os
import signal
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

MAX_LOG_BYTES = 65_536
MAX_WORDS_BYTES = 4096
STACKS_SIGNAL = signal.SIGUSR1

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LogTail(RotatingFileHandler):
    """Keeps the last log lines in a file of bounded size."""

    def __init__(self, path: Path, line_format: str) -> None:
        """Write to `path` (0600) and `path`.1."""
        super().__init__(path, maxBytes=MAX_LOG_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter(line_format))

    def _open(self) -> TextIO:  # type: ignore[override]
        return os.fdopen(os.open(self.baseFilename, _FLAGS, 0o600), "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, a name of logging's
        """A full /dev/shm costs this copy of a line; the one on stderr is there."""


def tell_stacks(path: Path) -> None:
    """Append the stacks of all threads to `path` whenever STACKS_SIGNAL comes."""
    faulthandler.register(STACKS_SIGNAL, os.open(path, _FLAGS, 0o600), all_threads=True)


def read_log_tail(path: Path, max_lines: int) -> list[str]:
    """Return the last lines that the process logged; [] if it has logged nothing."""
    lines: list[str] = []
    for part in (path.with_name(f"{path.name}.1"), path):
        if part.exists():
            lines += part.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-max_lines:]


def leave_last_words(path: Path, line: str) -> None:
    """Say in one line why this process cannot go on; raises OSError."""
    with os.fdopen(os.open(path, _FLAGS | os.O_TRUNC, 0o600), "wb") as file:
        file.write(line.encode()[:MAX_WORDS_BYTES])


def take_last_words(path: Path) -> str:
    """Return and delete what a process has left; "" if it has said nothing."""
    try:
        words = path.read_bytes()[:MAX_WORDS_BYTES].decode(errors="replace")
    except FileNotFoundError:
        return ""
    path.unlink()
    return words
