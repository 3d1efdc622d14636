"""What a metric shows: a family and the page field behind it, where there is exactly one.

Owns: these records and the three kinds of family. Never knows: any particular metric.
"""

from dataclasses import dataclass

from frontends.metrics.exposition import Family, Kind

S_PER_NS = 1e-9


@dataclass(frozen=True, slots=True)
class Shown:
    """A family that shows one field of a page; `scale` turns the field's unit into the metric's."""

    family: Family
    field: str
    scale: float = 1


@dataclass(frozen=True, slots=True)
class ShownHistogram:
    """A histogram family and the histogram field of a page that it shows."""

    family: Family
    field: str
    bounds_s: tuple[float, ...]


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
