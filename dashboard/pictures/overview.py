"""The overview: is the engine well, what does it do, whom does it serve.

Pure. Rates and times first, then load, memory, what needs attention, and as many tenants as there
is room for; room that is left makes the charts higher.
"""

from collections.abc import Iterator

from dashboard.format import NOTHING, Glyphs, count, duration, percent
from dashboard.history import View
from dashboard.lines import Line, Span, Tone, line
from dashboard.pictures.alerts import alerts
from dashboard.pictures.memory import memory
from dashboard.pictures.trends import trends
from dashboard.tables.tenants import brief_table, rows_of

MAX_ALERTS = 3
MAX_ROWS = 5  # of a chart
LOOSE = 30  # lines from which blocks have space between them


def overview(
    view: View, width: int, height: int, glyphs: Glyphs, *, with_tenants: bool = True
) -> list[Line]:
    """Return the overview in `height` lines at the most."""
    space: list[Line] = [()] if height >= LOOSE else []
    attention = [line(("! ", tone), (text, tone)) for text, tone in alerts(view)[:MAX_ALERTS]]
    below = [_load(view), *space, *memory(view, width, glyphs), *space, *attention]
    rows = rows_of(view) if with_tenants else []
    table = brief_table()
    table.show(rows)
    wanted = len(below) + (len(rows) + 1 if with_tenants else 0)
    chart_rows = min(MAX_ROWS, max(1, (height - wanted) // 3)) if with_tenants else 1
    lines = [*trends(view, width, chart_rows, glyphs), *below]
    room = height - len(lines)
    if with_tenants and room > 1:
        lines += table.draw(width, room, glyphs, with_cursor=False)
    return lines[:height]


def _load(view: View) -> Line:
    totals = view.frame.totals
    wait = duration(totals.oldest_wait_s) if totals.waiting else NOTHING
    return line(
        (" run ", Tone.FAINT), count(totals.running),
        ("  wait ", Tone.FAINT), count(totals.waiting),
        (" oldest ", Tone.FAINT), wait,
        ("  preempted ", Tone.FAINT), count(totals.preempted),
        ("  swapped ", Tone.FAINT), count(totals.swapped),
        *_step_budget(view),
    )  # fmt: skip


def _step_budget(view: View) -> Iterator[Span]:
    """Yield how a step compares with the tightest promised gap."""
    promised = [each.itl_ms for each in view.frame.classes if each.itl_ms]
    if promised and view.step.p95_s is not None:
        used = view.step.p95_s * 1000 / min(promised)
        yield "  step ", Tone.FAINT
        yield percent(used), Tone.ALARM if used > 1 else Tone.NOTICE if used > 0.8 else Tone.PLAIN
        yield f" of {min(promised)}ms", Tone.FAINT
