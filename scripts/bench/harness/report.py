"""Figures, bars and how they are printed; the one form that every benchmark reports in.

A report is `{"benchmark", …, "figures": nested numbers, "bars": […], "ok"}`, a bar
`{name, value, unit, relation, limit, ok}`. A bar names a figure by its dotted path; a figure that
is missing fails its bar: nothing passes unmeasured.
"""

import asyncio
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[3]


def num_beyond(errors: Iterable[float]) -> int:
    """Return how many errors, in shares of a tolerance, are not within it; NaN is not."""
    return sum(not error <= 1 for error in errors)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile by linear interpolation; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread_ms(values_s: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 and max of `values_s`, in ms; empty if there are none."""
    if not values_s:
        return {}
    points = {f"p{p}": percentile(values_s, p) for p in (50, 90, 99)} | {"max": max(values_s)}
    return {name: round(value * 1e3, 3) for name, value in points.items()}


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit on one figure: `relation` is ">=" or "<="."""

    name: str
    relation: str
    limit: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bar, the value that was measured (None: it was not), and whether it holds."""

    name: str
    value: float | None
    unit: str
    relation: str
    limit: float
    ok: bool


def parse_bar(text: str) -> Bar:
    """Read `NAME>=LIMIT` or `NAME<=LIMIT`; raise ValueError otherwise."""
    for relation in (">=", "<="):
        name, found, limit = text.partition(relation)
        if found and name.strip():
            return Bar(name.strip(), relation, float(limit))
    raise ValueError(f"{text!r} is not of the form NAME>=LIMIT or NAME<=LIMIT")


def look_up(figures: Mapping[str, Any], path: str) -> float | None:
    """Return the figure at a dotted path, or None."""
    found: Any = figures
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return float(found) if isinstance(found, int | float) and not math.isnan(found) else None


def judge(figures: Mapping[str, Any], bars: Iterable[Bar]) -> list[Verdict]:
    """Hold the figures against the bars; a later bar replaces an earlier one on the same figure."""
    wanted = {(bar.name, bar.relation): bar for bar in bars}
    return [_verdict(look_up(figures, bar.name), bar) for bar in wanted.values()]


def _verdict(value: float | None, bar: Bar) -> Verdict:
    ok = value is not None and (value >= bar.limit if bar.relation == ">=" else value <= bar.limit)
    return Verdict(bar.name, value, bar.unit, bar.relation, bar.limit, ok)


def build(
    benchmark: str, figures: Mapping[str, Any], bars: Iterable[Bar], **about: object
) -> dict[str, Any]:
    """Return the whole report as plain data."""
    verdicts = judge(figures, bars)
    return {
        "benchmark": benchmark,
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": _commit(),
        "machine": _machine(),
        **about,
        "figures": figures,
        "bars": [asdict(verdict) for verdict in verdicts],
        "ok": all(verdict.ok for verdict in verdicts),
    }


def emit(report: Mapping[str, Any], as_json: bool) -> int:
    """Print the report, one JSON line or a table; return the exit status: 1 if a bar fails."""
    if as_json:
        print(json.dumps(report))
    else:
        _print_table(report)
    return 0 if report["ok"] else 1


def run(
    name: str, measure: Callable[[], Coroutine[Any, Any, Mapping[str, Any]]], as_json: bool
) -> int:
    """Measure and print; the exit status is 2 if nothing could be measured, else as `emit`."""
    try:
        return emit(asyncio.run(measure()), as_json)
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except (asyncio.CancelledError, KeyboardInterrupt):  # SIGTERM, or Ctrl-C
        print(f"{name}: stopped before it was done", file=sys.stderr)
        return 2


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # a machine without git
        return "unknown"
    return done.stdout.strip() or "unknown"


def _machine() -> str:
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return f"{len(os.sched_getaffinity(0))} cores, {cpu}"


def _flatten(figures: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f"{value:.2g}" if 0 < abs(value) < 0.1 else f"{value:.2f}"


def _print_table(report: Mapping[str, Any]) -> None:
    console = Console()
    table = Table(
        "figure", "value", title=f"{report['benchmark']} — {report['commit']}", min_width=50
    )
    for name, value in _flatten(report["figures"]):
        table.add_row(name, value)
    console.print(table)
    for bar in report["bars"]:
        mark = "[green]ok  [/]" if bar["ok"] else "[red]FAIL[/]"
        value = "not measured" if bar["value"] is None else _number(bar["value"])
        console.print(
            f"{mark} {bar['name']} = {value} {bar['relation']} {bar['limit']:g} {bar['unit']}"
        )
