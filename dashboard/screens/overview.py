"""The first screen: the engine at a glance."""

from textual.widget import Widget

from dashboard.format import Glyphs
from dashboard.history import View
from dashboard.pictures.overview import overview
from dashboard.screens.base import DashboardScreen
from dashboard.widgets.lines_view import LinesView


class OverviewScreen(DashboardScreen):
    """Draws `dashboard.pictures.overview`."""

    def __init__(self, glyphs: Glyphs) -> None:
        """Begin empty."""
        super().__init__(glyphs)
        self.picture = LinesView(id="body")

    def body(self) -> list[Widget]:
        """Return the picture."""
        return [self.picture]

    def draw(self, view: View) -> None:
        """Draw the overview in the room there is."""
        size = self.picture.size
        self.picture.show(overview(view, size.width, size.height, self.glyphs))

    def text(self) -> str:
        """Return the picture as text."""
        return self.picture.text
