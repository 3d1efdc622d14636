"""The help: every key, and what the columns of the table on the screen mean. Pure."""

from collections.abc import Sequence
from typing import Any

from dashboard.keymap import APP_KEYS, MOVES, REPLAY_KEYS, TABLE_KEYS
from dashboard.lines import Line, Tone, line
from dashboard.table import Column

WORDS = (
    (
        "KV",
        "blocks of memory for what was computed; held = in use, reusable = a prefix may be found",
    ),
    ("kept", "reserved for a class; others may use it and give it back at once"),
    ("gap", "time between two tokens of one stream, as http wrote them"),
    ("TTFT", "time from a request's arrival to its first token, as http wrote it"),
    ("OVER", "percent of the service that a tenant got beyond its share; - is what it is short of"),
    ("HUNG?", "silent for longer than its work takes: a second, or in a step four usual steps"),
    ("GONE", "the engine is not running; SILENT: it is, but its scheduler publishes nothing"),
)


def help_lines(columns: Sequence[Column[Any]]) -> list[Line]:
    """Return the whole help; `columns` are those of the screen it was asked on."""
    lines = [line(("keys", Tone.TITLE))]
    keys = (*APP_KEYS, *TABLE_KEYS, *REPLAY_KEYS)
    lines += [line((f"  {key.label:8}", Tone.ACCENT), key.help) for key in keys]
    lines += [line((f"  {names:15}", Tone.ACCENT), text) for names, text in MOVES]
    if columns:
        lines += [(), line(("columns of this table", Tone.TITLE))]
        lines += [line((f"  {each.title:14}", Tone.ACCENT), each.help) for each in columns]
    lines += [(), line(("words", Tone.TITLE))]
    return lines + [line((f"  {word:8}", Tone.ACCENT), text) for word, text in WORDS]
