"""Traces of real traffic: a CSV file, plain or .gz, one request a line.

Owns: the schema and what is said about a file that breaks it. Never knows: what a trace is used
for. Columns, named in a header line, in any order:

    arrival_s          seconds from the start, not falling
    prompt_tokens      the whole prompt, at least 1
    output_tokens      at least 1
    tenant             optional
    session            optional, not used
    class              optional: interactive, standard, batch or administrative; empty = what the
                       tenant's requests are if they name none, at first standard
    prefix_hit_tokens  optional, not used: what an endless cache would have found
    hash_ids_512       optional: blank-separated names of the prompt's blocks of 512 tokens; equal
                       names mean equal content up to that block's end
    max_tokens         optional: what the client asked for; empty = not known

What a running engine recorded of its own doing (`OBSERVED`) may be there too and is not used.
"""

import csv
import gzip
import math
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt

from core.errors import HeadraceError
from core.tenancy.classes import TrafficClass

REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("tenant", "session", "class", "prefix_hit_tokens", "hash_ids_512", "max_tokens")
OBSERVED = ("outcome", "queue_ms", "ttft_ms", "e2e_ms")
HASHED_BLOCK_TOKENS = 512
MAX_TOKENS = 10_000_000  # in a prompt or an output; more is a broken line
DEFAULT_CLASS = TrafficClass.STANDARD


class TraceError(HeadraceError):
    """A trace that cannot be used; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of one file, a column entry each, in the order of arrival."""

    arrival_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    tenants: tuple[str, ...]  # names by index; one empty name if the file has no tenants
    tenant_index: npt.NDArray[np.int64]
    traffic_class: npt.NDArray[np.int64]
    has_tenants: bool = False
    has_classes: bool = False
    hash_ids: tuple[tuple[int, ...], ...] = ()  # of each request; empty if the file has none
    names_class: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    max_tokens: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_s)


def read_trace(path: Path, limit: int = 0) -> Trace:
    """Return the first `limit` (0 = all) requests of a file; raises TraceError."""
    try:
        with opened(path) as text:
            return parse_trace(text, str(path), limit)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
    except (EOFError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"cannot read {path}: {error}") from error


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a plain or compressed file as text."""
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "rt", encoding="utf-8", newline="") as text:
        yield text


def parse_trace(lines: Iterable[str], name: str, limit: int = 0) -> Trace:
    """Return the requests in CSV `lines`; `name` is what messages call them."""
    reader = csv.reader(lines)
    columns = next(reader, None)
    if columns is None:
        raise TraceError(f"{name} is empty")
    rows = _Rows(name, _indexes(columns, name))
    for fields in reader:
        rows.add(fields, reader.line_num)
        if len(rows) == limit:
            break
    if not len(rows):
        raise TraceError(f"{name} has no requests")
    return rows.trace()


def _indexes(columns: list[str], name: str) -> dict[str, int]:
    missing = [column for column in REQUIRED if column not in columns]
    known = REQUIRED + OPTIONAL + OBSERVED
    unknown = [column for column in columns if column not in known]
    if missing:
        raise TraceError(f"{name} line 1: no column {missing[0]}")
    if unknown:
        raise TraceError(
            f"{name} line 1: unknown column {unknown[0]!r}; known are"
            f" {', '.join(REQUIRED + OPTIONAL)}"
        )
    if len(set(columns)) != len(columns):
        raise TraceError(f"{name} line 1: a column is there twice")
    return {column: index for index, column in enumerate(columns)}


class _Rows:
    """The columns of a trace while it is read."""

    def __init__(self, name: str, indexes: dict[str, int]) -> None:
        self._name = name
        self._indexes = indexes
        self._arrivals = array("d")
        self._prompts = array("q")
        self._outputs = array("q")
        self._tenants: dict[str, int] = {}
        self._tenant_indexes = array("q")
        self._classes = array("q")
        self._names_class = array("b")
        self._max_tokens = array("q")
        self._hash_ids: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._arrivals)

    def add(self, fields: list[str], line: int) -> None:
        """Take in one line; raises TraceError."""
        if len(fields) != len(self._indexes):
            raise self._fault(line, f"{len(fields)} fields, the header has {len(self._indexes)}")
        row = {column: fields[index] for column, index in self._indexes.items()}
        self._arrivals.append(self._arrival(row["arrival_s"], line))
        self._prompts.append(self._count(row, "prompt_tokens", line))
        self._outputs.append(self._count(row, "output_tokens", line))
        tenant = row.get("tenant", "")
        self._tenant_indexes.append(self._tenants.setdefault(tenant, len(self._tenants)))
        self._classes.append(self._class(row.get("class", ""), line))
        self._names_class.append(bool(row.get("class")))
        self._max_tokens.append(
            self._count(row, "max_tokens", line) if row.get("max_tokens") else 0
        )
        if "hash_ids_512" in row:
            self._hash_ids.append(self._ids(row["hash_ids_512"], line))

    def trace(self) -> Trace:
        """Return what was read."""
        return Trace(
            np.array(self._arrivals),
            np.array(self._prompts),
            np.array(self._outputs),
            tuple(self._tenants),
            np.array(self._tenant_indexes),
            np.array(self._classes),
            "tenant" in self._indexes,
            "class" in self._indexes,
            tuple(self._hash_ids),
            np.array(self._names_class, np.bool_),
            np.array(self._max_tokens),
        )

    def _arrival(self, text: str, line: int) -> float:
        try:
            arrival_s = float(text)
        except ValueError:
            raise self._fault(line, f"arrival_s = {text!r} is not a number") from None
        if not math.isfinite(arrival_s) or arrival_s < 0:
            raise self._fault(line, f"arrival_s = {text} is not a time ≥ 0")
        if self._arrivals and arrival_s < self._arrivals[-1]:
            raise self._fault(line, f"arrival_s = {text} is before the line above")
        return arrival_s

    def _count(self, row: dict[str, str], column: str, line: int) -> int:
        text = row[column]
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_TOKENS):
            raise self._fault(line, f"{column} = {text!r} is not a number from 1 to {MAX_TOKENS}")
        return int(text)

    def _class(self, text: str, line: int) -> int:
        if not text:
            return DEFAULT_CLASS
        try:
            return TrafficClass[text.upper()]
        except KeyError:
            names = ", ".join(each.label for each in TrafficClass)
            raise self._fault(line, f"class = {text!r} is none of {names}") from None

    def _ids(self, text: str, line: int) -> tuple[int, ...]:
        parts = text.split()
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise self._fault(line, "hash_ids_512 must be whole numbers with blanks between")
        return tuple(map(int, parts))

    def _fault(self, line: int, what: str) -> TraceError:
        return TraceError(f"{self._name} line {line}: {what}")
