"""Reads the audit log: what was appended since somebody read it last, or its end.

Owns: how a file is known again, and which lines are whole. Never knows: who reads, or which
commands exist. Files are renamed when the log is rotated, and a worker may still append to one that
has just been, so a file is known by its first line, which no other has, and each is read on from
where its reader stood.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import orjson

from frontends.admin.audit.log import log_files
from frontends.admin.redaction import without_secrets

MAX_PIECE_BYTES = 262_144  # of one file at a time: a worker that reads also answers
MAX_FIRST_LINE_BYTES = 65_536

Record = Mapping[str, object]
Positions = Mapping[str, int]  # bytes that were read, by file


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines of one file; `end` is the position behind them, `is_whole` that none was left
    out before them.
    """

    file: str
    end: int
    is_whole: bool
    lines: list[bytes] = field(repr=False)


def next_pieces(directory: Path, read: Positions) -> Iterator[Piece]:
    """Yield what follows on what was read, of each file, the oldest first; raises OSError."""
    for file, name in _open_files(directory):
        begin = read.get(name, 0)
        lines, end = _lines_from(file, begin)
        yield Piece(name, end, is_whole=True, lines=lines)


def last_pieces(directory: Path, read: Positions) -> Iterator[Piece]:
    """Yield the end of what was not read, of each file, the oldest first; raises OSError."""
    for file, name in _open_files(directory):
        known = read.get(name, 0)
        begin = max(known, os.fstat(file.fileno()).st_size - MAX_PIECE_BYTES)
        lines, end = _lines_from(file, begin)
        is_whole = begin == known
        yield Piece(name, end, is_whole, lines if is_whole else lines[1:])  # the first may be cut


def records_of(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield the records without secrets; what is none (a line that a full disk has cut) is passed
    over.
    """
    for line in lines:
        with suppress(orjson.JSONDecodeError):
            record = orjson.loads(line)
            if isinstance(record, dict):
                yield without_secrets(record)


def last_records(directory: Path) -> list[Record]:
    """Return the records at the end of the log, the newest last; none if it cannot be read."""
    try:
        pieces = list(last_pieces(directory, {}))
    except OSError:
        return []
    return [record for piece in pieces for record in records_of(piece.lines)]


def _open_files(directory: Path) -> Iterator[tuple[BinaryIO, str]]:
    """Yield each file that has a line, and what it is known by."""
    for path in log_files(directory):
        with suppress(FileNotFoundError), _open(path) as file:
            first_line = file.readline(MAX_FIRST_LINE_BYTES)
            if first_line.endswith(b"\n"):
                yield file, hashlib.sha256(first_line).hexdigest()


def _open(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb")


def _lines_from(file: BinaryIO, begin: int) -> tuple[list[bytes], int]:
    """Return the whole lines of a piece, and the position behind them."""
    file.seek(begin)
    data = file.read(MAX_PIECE_BYTES)
    size = data.rfind(b"\n") + 1
    if not size and len(data) == MAX_PIECE_BYTES:  # no line of ours: not looked at for ever
        size = len(data)
    return data[:size].splitlines(), begin + size
