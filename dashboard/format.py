"""Numbers as people read them: short, aligned, with their unit.

Pure. Owns: the words for numbers and the small charts of characters. Never knows: where a number
comes from. Nothing is longer than six cells, so that columns stay narrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dashboard.lines import Line, Span, Tone

NOTHING = "-"
SCALES = ((1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G"))
HEADROOM = 1.15  # of a chart, so that steady values do not look like a limit


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of charts and marks."""

    rises: str  # of a chart, lowest first
    full: str
    half: str  # reserved, or lent
    empty: str
    rule: str
    up: str
    down: str
    dot: str
    ellipsis: str
    times: str
    plus_minus: str


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "█", "▒", "░", "─", "▲", "▼", "●", "…", "×", "±")
ASCII = Glyphs("_.-~=+*#", "#", "=", ".", "-", "^", "v", "*", "~", "x", "+-")


def count(value: float) -> str:
    """Return a number in at most five cells: 999, 1.2k, 34.5k, 6.7M."""
    if value < 0:
        return "-" + count(-value)
    if value < 1e4:
        return f"{value:.0f}"
    for limit, factor, unit in SCALES:
        if value < limit:
            scaled = value / factor
            digits = 1 if scaled < 100 else 0
            return f"{scaled:.{digits}f}{unit}"
    return f"{value / 1e12:.0f}T"


def rate(value: float | None) -> str:
    """Return a number per second; small ones with a decimal."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if 0 < value < 10 else count(value)


def duration(seconds: float | None) -> str:
    """Return a time in at most six cells: 850us, 12ms, 3.4s, 2m05s, 3h20m, 4d02h."""
    if seconds is None:
        return NOTHING
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f}us" if seconds else "0s"
    if seconds < 0.9995:
        millis = seconds * 1e3
        return f"{millis:.1f}ms" if millis < 10 else f"{millis:.0f}ms"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    for step, unit, below, end in ((60, "m", "s", 3600), (3600, "h", "m", 86400)):
        if seconds < end:
            whole, rest = divmod(round(seconds * 60 / step), 60)
            return f"{whole}{unit}{rest:02d}{below}"
    days, rest = divmod(int(seconds), 86400)
    return f"{days}d{rest // 3600:02d}h"


def milliseconds(value: float) -> str:
    """Return a time that came in ms."""
    return duration(value / 1000)


def measured(seconds: float | None, bounds_s: Sequence[float]) -> str:
    """Return a quantile of a histogram; within its first bucket nothing more is known of it."""
    if seconds is not None and seconds <= bounds_s[0]:
        return f"<{duration(bounds_s[0])}"
    return duration(seconds)


def percent(fraction: float | None) -> str:
    """Return a share: 4.2%, 37%, 100%."""
    if fraction is None:
        return NOTHING
    value = fraction * 100
    return f"{value:.1f}%" if 0 < value < 9.95 else f"{value:.0f}%"


def size(num_bytes: float) -> str:
    """Return a size in bytes: 512B, 1.5MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f}{unit}" if unit == "B" else f"{num_bytes:.1f}{unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f}TiB"


def counted(number: int, thing: str) -> str:
    """Return how many there are of a thing: 1 restart, 4 restarts."""
    return f"{count(number)} {thing}" + "s" * (number != 1)


def zero_is_nothing(value: float) -> str:
    """Return a count, or a dash for none, so that what is there stands out."""
    return count(value) if value else NOTHING


@lru_cache(maxsize=32)
def chart(
    values: tuple[float | None, ...], width: int, height: int, glyphs: Glyphs
) -> tuple[str, ...]:
    """Return the last `width` values as bars from 0 to a bit above the largest, in `height` lines,
    the top one first; None is a gap. Looks come several times as often as new values.
    """
    shown = values[-width:] if width > 0 else ()
    top = HEADROOM * max((value for value in shown if value is not None), default=0.0)
    rises = glyphs.rises
    steps = height * len(rises)

    def level(value: float | None) -> int:
        if value is None:
            return 0
        return 1 + min(steps - 1, int(value / top * steps)) if top > 0 else 1

    def row(levels: Sequence[int], below: int) -> str:
        cells = (min(len(rises), max(0, each - below)) for each in levels)
        return "".join(rises[cell - 1] if cell else " " for cell in cells).rjust(max(0, width))

    levels = list(map(level, shown))
    return tuple(row(levels, line * len(rises)) for line in reversed(range(height)))


def meter(parts: Sequence[tuple[float, str, Tone]], whole: float, width: int, rest: str) -> Line:
    """Return a bar of `width` cells: parts of a whole one after the other, then the rest.

    Ends are rounded, not lengths, so that parts never add up to more than the bar; a part that is
    there at all gets a cell.
    """
    spans: list[Span] = []
    done, cells = 0.0, 0
    for value, glyph, tone in parts:
        done += value
        end = min(width, round(done / whole * width)) if whole > 0 else 0
        length = max(end - cells, 1 if value > 0 and cells < width else 0)
        if length:
            spans.append((glyph * length, tone))
        cells += length
    return (*spans, (rest * (width - cells), Tone.FAINT))


def most_common(counts: Mapping[str, int]) -> str:
    """Return the key with the largest count, "" if there is none."""
    return max(counts, key=lambda key: counts[key], default="")
