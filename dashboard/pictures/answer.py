"""The answer to a control command as lines: fields first, then records, lists as tables. Pure."""

from collections.abc import Mapping, Sequence

from dashboard.lines import Line, Tone, line
from dashboard.source.base import Record

MAX_ROWS = 200


def answer(result: Record) -> list[Line]:
    """Return a result as lines."""
    plain = {k: v for k, v in result.items() if not isinstance(v, Mapping | list)}
    lines = _fields(plain)
    for name, value in result.items():
        if isinstance(value, Mapping):
            lines += [line((name, Tone.TITLE)), *_fields(value, "  ")]
        elif isinstance(value, list):
            lines += [line((name, Tone.TITLE)), *_rows(value)]
    return lines


def change_of(result: Record) -> str:
    """Return what a command changed, "" if it says no such thing."""
    if "before" not in result or "after" not in result:
        return ""
    return f"{text_of(result['before'])} > {text_of(result['after'])}"


def _fields(record: Mapping[str, object], indent: str = "") -> list[Line]:
    width = max(map(len, record), default=0)
    return [
        line((f"{indent}{name.ljust(width)}  ", Tone.FAINT), text_of(value))
        for name, value in record.items()
    ]


def _rows(rows: Sequence[object]) -> list[Line]:
    records = [row for row in rows if isinstance(row, Mapping)][:MAX_ROWS]
    if not records:
        return [line(f"  {', '.join(map(text_of, rows)) or '-'}")]
    names = list(dict.fromkeys(name for row in records for name in row))
    cells = [[text_of(row.get(name)) for name in names] for row in records]
    widths = [max(len(n), *(len(row[i]) for row in cells)) for i, n in enumerate(names)]
    head = "  ".join(name.ljust(w) for name, w in zip(names, widths, strict=True))
    lines = [line((f"  {head}", Tone.HEAD))]
    lines += [
        line("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)))
        for row in cells
    ]
    return lines


def text_of(value: object) -> str:
    """Return a value in one line, without anything that could move a cursor."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3f}".rstrip("0").rstrip(".")
        case Mapping():
            return ", ".join(f"{k} {text_of(v)}" for k, v in value.items()) or "-"
        case list():
            return ", ".join(map(text_of, value)) or "-"
        case _:
            return "".join(c if c.isprintable() else "?" for c in str(value))
