"""Results of control commands for people: fields as lines, records as nested lines, lists of
records as tables, or a block each if there are lists of records in them.

Owns: layout only. The order and the titles come from the command's declaration, so a new command
needs nothing here.
"""

from collections.abc import Mapping, Sequence

from core.terminal import Style, Terminal
from ipc.control.declaration import Command

NOTHING = "-"
INDENT = "  "
ONE_LINE = ("list of texts", "any")  # declared types of what is shown in a line, however much it is


def render_result(command: Command, result: Mapping[str, object], terminal: Terminal) -> str:
    """Return a result as text, declared fields first, in their order."""
    declared = [field.name for field in command.result if field.name in result]
    names = [*declared, *(name for name in result if name not in declared)]
    one_line = {field.name for field in command.result if field.type in ONE_LINE}
    nested = [name for name in names if is_nested(result[name]) and name not in one_line]
    plain = [name for name in names if name not in nested]
    parts = ["\n".join(field_lines({name: result[name] for name in plain}, terminal))]
    parts += [section(name, result[name], terminal) for name in nested]
    return "\n\n".join(part for part in parts if part) + "\n"


def is_nested(value: object) -> bool:
    """Tell whether a value gets a section of its own."""
    return isinstance(value, Mapping | list)


def section(name: str, value: object, terminal: Terminal) -> str:
    """Return a titled section of a record or of a list of records."""
    title = terminal.style(name, Style.BOLD)
    if isinstance(value, Mapping):
        lines = field_lines(value, terminal)
    else:
        assert isinstance(value, list), type(value)
        rows = [row for row in value if isinstance(row, Mapping)]
        draw = block_lines if any(map(has_records, rows)) else table_lines
        lines = draw(rows, terminal)
    return "\n".join([title, *((INDENT + line).rstrip() for line in lines or [NOTHING])])


def has_records(record: Mapping[str, object]) -> bool:
    """Tell whether a field of a record is a list of records."""
    lists = (value for value in record.values() if isinstance(value, list))
    return any(isinstance(item, Mapping) for items in lists for item in items)


def block_lines(rows: Sequence[Mapping[str, object]], terminal: Terminal) -> list[str]:
    """Return records below each other: a line per field, then a table per list of records."""
    lines: list[str] = []
    for row in rows:
        inner = [name for name in row if has_records({name: row[name]})]
        plain = {name: value for name, value in row.items() if name not in inner}
        lines += ["", *field_lines(plain, terminal)]
        for name in inner:
            lines += section(name, row[name], terminal).splitlines()
    return lines[1:]


def field_lines(record: Mapping[str, object], terminal: Terminal) -> list[str]:
    """Return a line per field, values aligned."""
    width = max(map(len, record), default=0)
    return [
        f"{terminal.style(name.ljust(width), Style.DIM)}  {cell(value)}"
        for name, value in record.items()
    ]


def table_lines(rows: Sequence[Mapping[str, object]], terminal: Terminal) -> list[str]:
    """Return records as a table; numbers are aligned to the right."""
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(names)]
    right = [all(is_number(row.get(name)) for row in rows) for name in names]
    head = padded(names, widths, right)
    return [terminal.style(head, Style.DIM), *(padded(row, widths, right) for row in cells)]


def padded(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """Return one line of a table."""
    columns = zip(cells, widths, right, strict=True)
    return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in columns).rstrip()


def is_number(value: object) -> bool:
    """Tell whether a value is a number, or missing where numbers are."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def cell(value: object) -> str:
    """Return a value in one line, without anything that could move a terminal's cursor."""
    match value:
        case None | "":
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3f}".rstrip("0").rstrip(".")
        case Mapping():
            inner = ", ".join(f"{key} {cell(item)}" for key, item in value.items())
            return inner or NOTHING
        case list():
            return ", ".join(cell(item) for item in value) or NOTHING
        case _:
            return "".join(c if c.isprintable() else "?" for c in str(value))
