"""The trace that a running engine recorded, as a file for `headrace simulate`.

Owns: joining the pieces of `record-trace`, and the columns of the file. Never knows: sockets. The
engine numbers its rows, so pieces never overlap, and rows that were gone before they were asked for
are noticed. The file is written whole or not at all.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.terminal import CommandError

NS_PER_S, NS_PER_MS = 1e9, 1e6
MACHINE_FILE = "this-machine.json"  # in the cache directory, where `headrace simulate` looks
BEYOND = 2**53  # any row; a piece without rows tells of the machine
TIMES = ("queue", "ttft", "e2e")
HEADER = (
    "arrival_s", "prompt_tokens", "output_tokens", "max_tokens", "prefix_hit_tokens", "tenant",
    "class", "outcome", *(f"{name}_ms" for name in TIMES),
)  # fmt: skip

Record = Mapping[str, object]
Ask = Callable[[Mapping[str, object]], Record]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was written."""

    num_requests: int
    num_missed: int  # requests that the engine no longer had
    machine: str  # the file that tells of the machine; empty: the engine does not know it yet


def record_trace(ask: Ask, args: Mapping[str, object], path: Path, machine_path: Path) -> Recorded:
    """Write the rows that the engine has, up to the `limit` of `args` in all, into `path`, and its
    machine into `machine_path`.

    `ask` carries out the command once, with arguments, and returns its result. Raises CommandError
    if a file cannot be written.
    """
    pieces = list(_pieces(ask, args))
    rows = [row for piece in pieces for row in _records(piece)]
    _write(path, as_csv(rows))
    num_asked = _number(pieces[-1]["next"]) - _number(args.get("first", 0))
    machine = ask({"first": BEYOND})["machine"]
    if machine:
        machine_path.parent.mkdir(parents=True, exist_ok=True)
        _write(machine_path, json.dumps(machine))
    return Recorded(len(rows), num_asked - len(rows), str(machine_path) if machine else "")


def as_csv(rows: Sequence[Record]) -> str:
    """Return rows as the text of a trace, in the order of arrival, times from the first one on."""
    ordered = sorted(rows, key=lambda row: _number(row["arrival_ns"]))
    start_ns = _number(ordered[0]["arrival_ns"]) if ordered else 0
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for row in ordered:
        arrival_s = (_number(row["arrival_ns"]) - start_ns) / NS_PER_S
        counts = [row[name] for name in HEADER[1:8]]
        writer.writerow([f"{arrival_s:.6f}", *counts, *(_ms(row[f"{name}_ns"]) for name in TIMES)])
    return text.getvalue()


def _pieces(ask: Ask, args: Mapping[str, object]) -> Iterator[Record]:
    piece = ask(args)
    yield piece
    end = _number(piece["total"])  # what ends meanwhile is for the next time
    if "limit" in args:
        end = min(end, _number(piece["first"]) + _number(args["limit"]))
    while (first := _number(piece["next"])) < end:
        piece = ask({"first": first, "limit": end - first})
        yield piece


def _records(piece: Record) -> Iterator[Record]:
    columns, rows = piece["columns"], piece["rows"]
    assert isinstance(columns, list), type(columns)
    assert isinstance(rows, list), type(rows)
    for row in rows:
        yield dict(zip(columns, row, strict=True))


def _write(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.part")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error


def _ms(time_ns: object) -> str:
    """Return milliseconds; empty for what never happened."""
    return f"{_number(time_ns) / NS_PER_MS:.3f}" if time_ns else ""


def _number(value: object) -> int:
    assert isinstance(value, int), type(value)
    return value
