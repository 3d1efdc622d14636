"""Charts as SVG text: lines, stacked areas, bars.

Owns: scales, ticks, paths, colours. Never knows: what the numbers mean. Colours come from the
page's CSS (`--c0` … `--c7`), so that a chart follows a light or a dark page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WIDTH, HEIGHT = 460, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 30, 42
NUM_COLOURS = 8
NUM_TICKS = 5
MAX_POINTS = 400


@dataclass(frozen=True, slots=True)
class Series:
    """A named line: float64[n] each."""

    name: str
    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a chart: data range onto pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, values: Floats) -> Floats:
        """Return pixel positions."""
        low, high = self._scale(np.array([self.low, self.high]))
        share = (self._scale(values) - low) / (high - low if high > low else 1.0)
        placed: Floats = self.start + share * (self.end - self.start)
        return placed

    def ticks(self) -> list[float]:
        """Return round values within the range."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            factors = (1, 2, 5) if self.high < 100 * self.low else (1,)
            marks = [f * 10.0**power for power in range(first, last + 1) for f in factors]
            return [value for value in marks if self.low <= value <= self.high]
        step = _round_step((self.high - self.low) / NUM_TICKS)
        first_step = math.ceil(self.low / step - 1e-9)
        return [step * k for k in range(first_step, int(self.high / step + 1e-9) + 1)]

    def _scale(self, values: Floats) -> Floats:
        return np.log10(np.maximum(values, self.low)) if self.log else values


def line_chart(
    title: str, x_label: str, y_label: str, lines: Sequence[Series], *, log_x: bool = False
) -> str:
    """Return a chart with a line for each series; empty if there is nothing to draw."""
    shown = [_thinned(each) for each in lines if len(each.x)]
    if not shown:
        return ""
    x_axis = _axis_of([s.x for s in shown], LEFT, WIDTH - RIGHT, log=log_x)
    y_axis = _axis_of([s.y for s in shown], HEIGHT - BOTTOM, TOP, from_zero=True)
    marks = [
        f'<polyline class="line" style="stroke:var(--c{number % NUM_COLOURS})"'
        f' points="{_points(x_axis.place(s.x), y_axis.place(s.y))}"/>'
        for number, s in enumerate(shown)
    ]
    return _chart(title, x_label, y_label, x_axis, y_axis, marks, [s.name for s in shown])


def area_chart(
    title: str, x_label: str, y_label: str, x: Floats, layers: Sequence[tuple[str, Floats]]
) -> str:
    """Return a chart of layers on top of each other; empty if there is nothing to draw."""
    if not len(x) or not layers:
        return ""
    x_axis = _axis_of([x], LEFT, WIDTH - RIGHT)
    total = np.sum([values for _, values in layers], axis=0)
    y_axis = _axis_of([total], HEIGHT - BOTTOM, TOP, from_zero=True)
    base, marks = np.zeros(len(x)), []
    for number, (_, values) in enumerate(layers):
        top = base + values
        outline = _points(
            x_axis.place(np.concatenate([x, x[::-1]])),
            y_axis.place(np.concatenate([top, base[::-1]])),
        )
        marks.append(f'<polygon style="fill:var(--c{number % NUM_COLOURS})" points="{outline}"/>')
        base = top
    return _chart(title, x_label, y_label, x_axis, y_axis, marks, [name for name, _ in layers])


def bar_chart(title: str, x_label: str, bars: Sequence[tuple[str, float]]) -> str:
    """Return a chart of lying bars with their values; empty if there are none."""
    if not bars:
        return ""
    left, row = 190, 22
    height = TOP + row * len(bars) + 26
    longest = max(max(value for _, value in bars), 1e-9)
    marks = []
    for number, (name, value) in enumerate(bars):
        y = TOP + row * number
        length = (WIDTH - RIGHT - left - 60) * value / longest
        marks.append(
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{left}" y="{y + 3}" width="{length:.1f}" height="{row - 7}"'
            f' style="fill:var(--c0)"/>'
            f'<text x="{left + length + 6:.1f}" y="{y + 14}">{value:g}</text>'
        )
    marks.append(_text(left, height - 8, x_label, "start"))
    return _svg(title, height, marks)


def _chart(
    title: str, x_label: str, y_label: str, x_axis: Axis, y_axis: Axis, marks: list[str],
    names: list[str],
) -> str:  # fmt: skip
    middle = (LEFT + WIDTH - RIGHT) / 2
    labels = [
        _text(middle, HEIGHT - 8, x_label, "middle"),
        _upright(13, (TOP + HEIGHT - BOTTOM) / 2, y_label),
    ]
    legend = "".join(
        f'<span><i style="background:var(--c{number % NUM_COLOURS})"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    parts = [*_grid(x_axis, y_axis), *marks, *labels]
    return f"<figure>{_svg(title, HEIGHT, parts)}<figcaption>{legend}</figcaption></figure>"


def _grid(x_axis: Axis, y_axis: Axis) -> list[str]:
    parts = []
    for value in x_axis.ticks():
        x = float(x_axis.place(np.array([value]))[0])
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(_text(x, HEIGHT - BOTTOM + 15, f"{value:g}", "middle"))
    for value in y_axis.ticks():
        y = float(y_axis.place(np.array([value]))[0])
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{value:g}", "end"))
    return parts


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    heading = f'<text class="title" x="{LEFT}" y="17">{escape(title)}</text>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{heading}{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _upright(x: float, y: float, text: str) -> str:
    place = f'transform="translate({x:.1f} {y:.1f}) rotate(-90)"'
    return f'<text {place} text-anchor="middle">{escape(text)}</text>'


def _points(x: Floats, y: Floats) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def _axis_of(
    columns: Sequence[Floats], start: float, end: float, *, log: bool = False,
    from_zero: bool = False,
) -> Axis:  # fmt: skip
    values = np.concatenate(columns)
    if log:
        values = values[values > 0]
    low, high = (float(values.min()), float(values.max())) if len(values) else (1.0, 1.0)
    if from_zero:
        low = min(low, 0.0)
    if high <= low:
        high = low * 10 if log else low + 1
    return Axis(low, high, start, end, log)


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999)


def _thinned(series: Series) -> Series:
    """Return at most about MAX_POINTS of a series, the last one included."""
    count = len(series.x)
    if count <= MAX_POINTS:
        return series
    chosen = np.unique(np.linspace(0, count - 1, MAX_POINTS).astype(int))
    return Series(series.name, series.x[chosen], series.y[chosen])
