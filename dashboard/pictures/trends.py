"""Rates and times of the last minutes: numbers with a chart beside each, as high as there is room.

Pure. Rates stand at the left, times at the right.
"""

from collections.abc import Callable, Sequence

from dashboard.format import Glyphs, chart, duration, measured, rate
from dashboard.history import Sample, Times, View
from dashboard.lines import Line, Span, Tone, beside, crop, fit, line, width_of
from ipc.pages import ITL_BUCKETS_S, STEP_BUCKETS_S, TTFT_BUCKETS_S

RATES_HEAD, TIMES_HEAD = 24, 23  # cells before the chart
GAP = 2

Series = tuple[float | None, ...]


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
    shown = (("generated", view.generated), ("prompt", view.prompt))
    for (name, value), height in zip(shown, heights, strict=True):
        label = "prompts" if name == "prompt" else name
        series = _series(view.samples, name, width)
        head = line((fit(f" {label}", 11), Tone.FAINT), f"{rate(value):>6} ", ("tok/s", Tone.FAINT))
        lines += _pane(head, RATES_HEAD, series, rate, width, height, glyphs)
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
        series = _series(view.samples, name, width)
        drawn = "p50 " if name.endswith("p50_s") else "p95 "
        lines += _pane(head, TIMES_HEAD, series, duration, width, rows, glyphs, drawn)
    return lines


def _pane(
    head: Line, head_width: int, series: Series, show: Callable[[float], str],
    width: int, height: int, glyphs: Glyphs, of: str = "",
) -> list[Line]:  # fmt: skip
    """Return a chart with its numbers at the left; a high one says what its highest bar is, of the
    quantile that is drawn.
    """
    room = max(0, width - head_width)
    known = [value for value in series[-room:] if value is not None] if room else []
    peak: Line = ((f" peak {of}{show(max(known))}", Tone.FAINT),) if known and height > 1 else ()
    beside_it = [head, peak, *[()] * height][:height]
    bars = chart(series, room, height, glyphs)
    return [
        (*_padded(text, head_width), (row, Tone.ACCENT))
        for text, row in zip(beside_it, bars, strict=True)
    ]


def _padded(spans: Line, width: int) -> Line:
    space: Span = (" " * max(0, width - width_of(spans)), Tone.PLAIN)
    return (*crop(spans, width), space)


def _series(samples: Sequence[Sample], name: str, width: int) -> Series:
    return tuple([getattr(sample, name) for sample in samples[-max(1, width) :]])
