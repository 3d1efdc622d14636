"""What is on the screen, and all that is known, as files.

Owns: names and formats of exported files. They are made anew in the current directory and never
replace one.
"""

import csv
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dashboard.history import Times, View


class ExportError(Exception):
    """A file cannot be written; the message names it."""


def write_csv(folder: Path, name: str, records: Sequence[Mapping[str, str]], wall_s: float) -> Path:
    """Write the rows of a table and return the file; raises ExportError."""
    path = _path(folder, name, "csv", wall_s)
    try:
        with path.open("x", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]) if records else [])
            writer.writeheader()
            writer.writerows(records)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror}") from error
    return path


def write_json(folder: Path, view: View) -> Path:
    """Write all that is known now and return the file; raises ExportError."""
    path = _path(folder, "state", "json", view.frame.wall_s)
    try:
        with path.open("x") as file:
            file.write(json.dumps(document(view), indent=2) + "\n")
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror}") from error
    return path


def document(view: View) -> dict[str, object]:
    """Return a view as JSON-like data: the frame by field names, and the rates beside it."""
    frame = fields_of(view.frame)
    assert isinstance(frame, dict)
    rates = {
        name: getattr(view, name)
        for name in ("generated", "prompt", "steps", "finished", "refused")
    }
    times = {name: _times(getattr(view, name)) for name in ("ttft", "itl", "step")}
    tenants = {
        name: {"generated": each.generated, "prompt": each.prompt, "refused": dict(each.refused)}
        for name, each in view.tenants.items()
    }
    lately = {
        **rates,
        **times,
        "queue": {k: _times(t) for k, t in view.queue.items()},
        "tenants": tenants,
    }
    return {**frame, "lately": lately}


def fields_of(value: object) -> object:
    """Return structs as mappings by field name, which on disk they are not."""
    if isinstance(value, msgspec.Struct):
        return {name: fields_of(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [fields_of(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


def _times(times: Times) -> dict[str, float | None]:
    return {"p50_s": times.p50_s, "p95_s": times.p95_s}


def _path(folder: Path, name: str, suffix: str, wall_s: float) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(wall_s))
    path = folder / f"headrace-{name}-{stamp}.{suffix}"
    number = 2
    while path.exists():
        path = folder / f"headrace-{name}-{stamp}-{number}.{suffix}"
        number += 1
    return path
