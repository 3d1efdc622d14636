"""Lines on the screen: the one widget below all others, drawn line by line.

Owns: which lines are on the screen, and that only those that changed are drawn again; this is what
makes a dashboard of hundreds of changing cells cost a percent of a core. Never knows: what the
lines say.

Textual asks for all lines of a widget when one of them has changed, so each is kept as it was drawn
until it changes, or the width or the colours of all do.
"""

from collections.abc import Sequence
from itertools import groupby, zip_longest
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from dashboard.lines import PLAIN, Line, Tone, plain, width_of


class LinesView(Widget):
    """Shows lines; the style sheet has a style for each tone."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"tone--{tone.value}" for tone in Tone}

    def __init__(self, *, id: str | None = None) -> None:
        """Begin empty."""
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._styles: dict[Tone, Style] = {}
        self._strips: dict[int, Strip] = {}  # by line, as wide as `_width`
        self._width = 0

    @property
    def text(self) -> str:
        """What is on the screen, without colour."""
        return "\n".join(plain(each) for each in self._lines)

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these lines; those that are as before are left alone."""
        before, self._lines = self._lines, list(lines)
        pairs = zip_longest(before, self._lines, fillvalue=())
        changed = [y for y, (old, new) in enumerate(pairs) if old != new]
        if not changed:
            return
        for y in changed:
            self._strips.pop(y, None)
        width = self.size.width
        runs = groupby(enumerate(changed), key=lambda each: each[1] - each[0])
        ys = [[y for _, y in run] for _, run in runs]
        self.refresh(*(Region(0, run[0], width, len(run)) for run in ys))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return lines as they are: this widget has no border or padding to go around them, and
        its colours are final, unless there shall be none.
        """
        width = self.size.width
        if width != self._width:
            self._width = width
            self._strips.clear()
        strips = [self.render_line(y) for y in crop.line_range]
        if self.app.no_color:
            for each in self.app._filters:
                if each.enabled:
                    strips = [
                        strip.apply_filter(each, self.background_colors[1]) for strip in strips
                    ]
        if crop.column_span != (0, width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        """Return one line as Textual wants it."""
        strip = self._strips.get(y)
        if strip is None:
            strip = self._strips[y] = self._drawn(self._lines[y] if y < len(self._lines) else ())
        return strip

    def _drawn(self, line: Line) -> Strip:
        styles = self._styles or self._find_styles()
        segments = [Segment(text, styles[tone]) for text, tone in line]
        return Strip(segments, width_of(line)).adjust_cell_length(self._width, styles[PLAIN])

    def notify_style_update(self) -> None:
        """Forget the styles of another theme, and what was drawn in them."""
        super().notify_style_update()
        self._styles = {}
        self._strips.clear()

    def _find_styles(self) -> dict[Tone, Style]:
        self._styles = {tone: self.get_component_rich_style(f"tone--{tone.value}") for tone in Tone}
        return self._styles
