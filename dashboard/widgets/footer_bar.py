"""The last line: the keys one needs most, or what just happened."""

from functools import lru_cache

from dashboard.keymap import APP_KEYS, TABLE_KEYS
from dashboard.lines import Line, Span, Tone
from dashboard.widgets.lines_view import LinesView


@lru_cache(maxsize=64)
def hints_line(*, has_table: bool, extra: str = "") -> Line:
    """Return the hints; those of tables only where there is one."""
    spans: list[Span] = [(" ", Tone.PLAIN)]
    for key in (*(TABLE_KEYS if has_table else ()), *APP_KEYS):
        if key.hint:
            spans += [(key.label, Tone.TITLE), (f" {key.hint}  ", Tone.FAINT)]
    return (*spans, (extra, Tone.NOTICE))


class FooterBar(LinesView):
    """One line."""
