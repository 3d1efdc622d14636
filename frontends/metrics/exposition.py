"""The Prometheus text format: families, series, escaping; nothing of the engine.

A scrape writes thousands of lines, so the parts of lines before their values are built once per
(name, labels), for a histogram all of its buckets together, and kept in bounded caches.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate

MAX_CACHED_SERIES = 32_768
MAX_CACHED_HISTOGRAMS = 4_096

Labels = tuple[tuple[str, str], ...]


class Kind(StrEnum):
    """Type of a family, as the format spells it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name as scraped (counters end in `_total`), its help and its own label
    names."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Exposition:
    """Collects families in order and returns them as one text."""

    def __init__(self) -> None:
        """Start empty."""
        self._lines: list[str] = []

    def add(self, family: Family, samples: Iterable[tuple[Labels, float]]) -> None:
        """Append a counter or gauge with all its series."""
        self._head(family)
        name = family.name
        self._lines.extend(f"{prefix(name, labels)}{number(value)}" for labels, value in samples)

    def add_histogram(
        self,
        family: Family,
        bounds: tuple[float, ...],
        samples: Iterable[tuple[Labels, Sequence[int], float]],
    ) -> None:
        """Append a histogram; each sample has a count per bucket (not cumulative, +Inf last) and
        its sum."""
        self._head(family)
        for labels, counts, total in samples:
            assert len(counts) == len(bounds) + 1, (family.name, len(counts))
            before = histogram_prefixes(family.name, labels, bounds)
            values = list(map(str, accumulate(counts)))
            self._lines.extend(map(str.__add__, before, (*values, values[-1], number(total))))

    def text(self) -> bytes:
        """Return everything added so far, UTF-8."""
        return ("\n".join(self._lines) + "\n").encode()

    def _head(self, family: Family) -> None:
        self._lines.append(f"# HELP {family.name} {escape_help(family.help)}")
        self._lines.append(f"# TYPE {family.name} {family.kind}")


@lru_cache(maxsize=MAX_CACHED_SERIES)
def prefix(name: str, labels: Labels) -> str:
    """Return a line up to its value, e.g. `up{engine="0"} `."""
    inner = ",".join(f'{label}="{escape_label(value)}"' for label, value in labels)
    return f"{name}{{{inner}}} " if inner else f"{name} "


@lru_cache(maxsize=MAX_CACHED_HISTOGRAMS)
def histogram_prefixes(name: str, labels: Labels, bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Return the lines of a histogram up to their values: its buckets, count and sum."""
    buckets = [
        prefix.__wrapped__(f"{name}_bucket", (*labels, ("le", number(float(bound)))))
        for bound in (*bounds, math.inf)
    ]
    return (*buckets, prefix(f"{name}_count", labels), prefix(f"{name}_sum", labels))


def number(value: float) -> str:
    """Return a value as the format wants it."""
    if isinstance(value, int):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))


def escape_label(value: str) -> str:
    """Return a label value with backslash, quote and newline escaped."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def escape_help(text: str) -> str:
    """Return a help text with backslash and newline escaped."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")
