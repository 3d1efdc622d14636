"""What `--once` prints: the overview and the tenants as text, or everything as JSON. Pure."""

import json

from dashboard.export import document
from dashboard.format import Glyphs
from dashboard.history import View
from dashboard.lines import plain
from dashboard.pictures.overview import overview
from dashboard.tables.tenants import rows_of, tenants_table
from dashboard.widgets.header_bar import state_line

MAX_LINES = 16


def text(view: View, clock: str, width: int, glyphs: Glyphs) -> str:
    """Return the overview and the table of all tenants."""
    table = tenants_table()
    table.show(rows_of(view))
    head = state_line(view.frame, (), clock, width, glyphs)
    above = overview(view, width, MAX_LINES, glyphs, with_tenants=False)
    lines = [head, *above, (), *table.draw(width, len(table.rows) + 2, glyphs, with_cursor=False)]
    return "\n".join(map(plain, lines)) + "\n"


def as_json(view: View) -> str:
    """Return all that is known."""
    return json.dumps(document(view), indent=2, ensure_ascii=False) + "\n"
