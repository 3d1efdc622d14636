"""Rates and times of the last minutes: numbers with a chart beside each, as high as there is room.

Pure. Rates stand at the left, times at the right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dashboard.format import Glyphs, chart, duration, measured, rate
from dashboard.history import Sample, Times, View
from dashboard.lines import Line, Span, Tone, beside, crop, fit, line, width_of
from ipc.pages import ITL_BUCKETS_S, STEP_BUCKETS_S, TTFT_BUCKETS_S

RATES_HEAD, TIMES_HEAD = 24, 23  # cells before the chart
GAP = 2

Series = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Trend:
    """A number as it is now, and how it came there."""

    head: Line
    series: Series
    now: float | None
    show: Callable[[float], str]
    drawn: str = ""  # which quantile it is, if it is one


def trends(view: View, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Return 3 * `rows` lines."""
    left = (width - GAP) // 2
    right = width - GAP - left
    return beside(_rates(view, left, rows, glyphs), _times(view, right, rows, glyphs), left, GAP)


def _rates(view: View, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Return two charts and a line, as high as the three charts of times."""
    lower = (3 * rows - 1) // 2
    heights = (3 * rows - 1 - lower, lower)
    lines: list[Line] = []
    shown = (("generated", "generated", view.generated), ("prompts", "prompt", view.prompt))
    for (label, name, value), height in zip(shown, heights, strict=True):
        head = line((fit(f" {label}", 11), Tone.FAINT), f"{rate(value):>6} ", ("tok/s", Tone.FAINT))
        trend = Trend(head, _series(view.samples, name, width), value, rate)
        lines += _pane(trend, RATES_HEAD, width, height, glyphs)
    return [*lines, _ends(view)]


def _ends(view: View) -> Line:
    return line(
        (fit(" per second", 11), Tone.FAINT), f"{rate(view.finished):>6} ", ("ended ", Tone.FAINT),
        (f"{rate(view.refused):>5} ", Tone.NOTICE if view.refused else Tone.PLAIN),
        ("refused", Tone.FAINT),
    )  # fmt: skip


def _times(view: View, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    shown: tuple[tuple[str, Times, Sequence[float], str], ...] = (
        ("TTFT", view.ttft, TTFT_BUCKETS_S, "ttft_p95_s"),
        ("gap", view.itl, ITL_BUCKETS_S, "itl_p95_s"),
        ("step", view.step, STEP_BUCKETS_S, "step_p50_s"),
    )
    lines: list[Line] = []
    for label, times, bounds_s, name in shown:
        head = line(
            (fit(label, 5), Tone.FAINT), f"{measured(times.p50_s, bounds_s):>6}",
            (" p95 ", Tone.FAINT), f"{measured(times.p95_s, bounds_s):>6}",
        )  # fmt: skip
        drawn, now = ("p50", times.p50_s) if name.endswith("p50_s") else ("p95", times.p95_s)
        trend = Trend(head, _series(view.samples, name, width), now, duration, f"{drawn} ")
        lines += _pane(trend, TIMES_HEAD, width, rows, glyphs)
    return lines


def _pane(trend: Trend, head_width: int, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return a chart with its numbers at the left; a high one says what was the most of the time
    that it shows, and of now.
    """
    room = max(0, width - head_width)
    known = [value for value in (*trend.series[-room:], trend.now) if value is not None]
    peak: Line = ()
    if room and len(known) > 1 and height > 1:
        peak = ((f" peak {trend.drawn}{trend.show(max(known))}", Tone.FAINT),)
    beside_it = [trend.head, peak, *[()] * height][:height]
    bars = chart(trend.series, room, height, glyphs)
    return [
        (*_padded(text, head_width), (row, Tone.ACCENT))
        for text, row in zip(beside_it, bars, strict=True)
    ]


def _padded(spans: Line, width: int) -> Line:
    space: Span = (" " * max(0, width - width_of(spans)), Tone.PLAIN)
    return (*crop(spans, width), space)


def _series(samples: Sequence[Sample], name: str, width: int) -> Series:
    return tuple([getattr(sample, name) for sample in samples[-max(1, width) :]])
