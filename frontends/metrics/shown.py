"""What a metric shows: a family and the page field behind it, where there is exactly one.

Owns: these records, the three kinds of family, and how tables of them are appended. Never knows:
any particular metric.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frontends.boards import Page
from frontends.metrics.exposition import Exposition, Family, Kind, Labels

S_PER_NS = 1e-9

Rows = Sequence[tuple[Labels, np.void]]


@dataclass(frozen=True, slots=True)
class Shown:
    """A family that shows one field of a page; `scale` turns the field's unit into the metric's."""

    family: Family
    field: str
    scale: float = 1


@dataclass(frozen=True, slots=True)
class ShownHistogram:
    """A histogram family, the histogram field of a page that it shows, and its upper bounds."""

    family: Family
    field: str
    bounds: tuple[float, ...]


def counter(name: str, text: str, *labels: str) -> Family:
    """Return a counter; its name ends in `_total`."""
    assert name.endswith("_total"), name
    return Family(name, Kind.COUNTER, text, labels)


def gauge(name: str, text: str, *labels: str) -> Family:
    """Return a gauge."""
    return Family(name, Kind.GAUGE, text, labels)


def histogram(name: str, text: str, *labels: str) -> Family:
    """Return a histogram."""
    return Family(name, Kind.HISTOGRAM, text, labels)


def add_fields(out: Exposition, table: Sequence[Shown], rows: Rows) -> None:
    """Append one family for each entry of `table`, with a series for each row."""
    for shown in table:
        values = [(labels, row[shown.field].item()) for labels, row in rows]
        if shown.scale != 1:
            values = [(labels, value * shown.scale) for labels, value in values]
        out.add(shown.family, values)


def add_histograms(out: Exposition, table: Sequence[ShownHistogram], rows: Rows) -> None:
    """Append one histogram for each entry of `table`, with a series for each row."""
    for shown in table:
        fields = [(labels, row[shown.field]) for labels, row in rows]
        samples = [(labels, each["counts"].tolist(), float(each["sum"])) for labels, each in fields]
        out.add_histogram(shown.family, shown.bounds, samples)


def add_columns(
    out: Exposition, table: Sequence[Shown], labels: Sequence[Labels], rows: Any
) -> None:
    """Append one family for each entry of `table` from the columns of a structured array."""
    for shown in table:
        values = rows[shown.field].tolist()
        if shown.scale != 1:
            values = [value * shown.scale for value in values]
        out.add(shown.family, zip(labels, values, strict=True))


def add_histogram_columns(
    out: Exposition, table: Sequence[ShownHistogram], labels: Sequence[Labels], rows: Any
) -> None:
    """Append one histogram for each entry of `table` from the columns of a structured array."""
    for shown in table:
        column = rows[shown.field]
        counts, sums = column["counts"].tolist(), column["sum"].tolist()
        out.add_histogram(shown.family, shown.bounds, zip(labels, counts, sums, strict=True))


def process_label(child: str) -> Labels:
    """Return the label of a child id."""
    return (("process", child),)


def labelled(pages: Sequence[tuple[str, Page]]) -> list[tuple[Labels, np.void]]:
    """Return the pages' records, each with its `process` label."""
    return [(process_label(child), page.record) for child, page in pages]


def field_samples(pages: Sequence[tuple[str, Page]], field: str) -> Iterator[tuple[Labels, int]]:
    """Yield a sample for each page that has `field`."""
    for child, page in pages:
        if field in (page.record.dtype.names or ()):
            yield process_label(child), int(page.record[field])
