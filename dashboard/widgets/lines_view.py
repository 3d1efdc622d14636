"""Lines on the screen: the one widget below all others, drawn line by line.

Owns: which lines are on the screen, and that only those that changed are drawn again; this is what
makes a dashboard of hundreds of changing cells cost a percent of a core. Never knows: what the
lines say.
"""

from collections.abc import Sequence
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from dashboard.lines import Line, Tone, plain


class LinesView(Widget):
    """Shows lines; the style sheet has a style for each tone."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"tone--{tone.value}" for tone in Tone}

    def __init__(self, *, id: str | None = None) -> None:
        """Begin empty."""
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._styles: dict[Tone, Style] = {}

    @property
    def text(self) -> str:
        """What is on the screen, without colour."""
        return "\n".join(plain(each) for each in self._lines)

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these lines; those that are as before are left alone."""
        before, self._lines = self._lines, list(lines)
        pairs = zip_longest(before, self._lines, fillvalue=())
        changed = [y for y, (old, new) in enumerate(pairs) if old != new]
        for _, run in groupby(enumerate(changed), key=lambda each: each[1] - each[0]):
            ys = [y for _, y in run]
            self.refresh(Region(0, ys[0], self.size.width, len(ys)))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return lines as they are: this widget has no border or padding to go around them, and
        its colours are final, unless there shall be none.
        """
        strips = [self.render_line(y) for y in crop.line_range]
        if self.app.no_color:
            for each in self.app._filters:
                if each.enabled:
                    strips = [
                        strip.apply_filter(each, self.background_colors[1]) for strip in strips
                    ]
        if crop.column_span != (0, self.size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        """Return one line as Textual wants it."""
        line = self._lines[y] if y < len(self._lines) else ()
        runs = groupby(line, key=itemgetter(1))
        segments = [Segment("".join(t for t, _ in run), self._style(tone)) for tone, run in runs]
        return Strip(segments).adjust_cell_length(self.size.width, self._style(Tone.PLAIN))

    def notify_style_update(self) -> None:
        """Forget the styles of another theme."""
        super().notify_style_update()
        self._styles.clear()

    def _style(self, tone: Tone) -> Style:
        if tone not in self._styles:
            self._styles[tone] = self.get_component_rich_style(f"tone--{tone.value}")
        return self._styles[tone]
