"""Every key, once: bindings, the help screen and the footer are made from these tables."""

from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class Key:
    """A key (Textual's names, several by comma), what it does, and what people call it."""

    keys: str
    action: str
    label: str
    help: str
    hint: str = ""  # in the footer; "" = only in the help

    @property
    def binding(self) -> Binding:
        """The key as Textual wants it."""
        return Binding(self.keys, self.action, self.help, show=False, key_display=self.label)


SCREENS = ("overview", "tenants", "requests", "executors", "promises", "events")

APP_KEYS = (
    *(
        Key(str(number), f"go('{name}')", str(number), f"Show {name}")
        for number, name in enumerate(SCREENS, 1)
    ),
    Key("tab", "go_next(1)", "Tab", "Next screen"),
    Key("shift+tab", "go_next(-1)", "S-Tab", "Previous screen"),
    Key("space", "freeze", "Space", "Freeze what is shown, or go on", "freeze"),
    Key("colon", "palette", ":", "Give a command to the engine", "command"),
    Key("question_mark,f1", "help", "?", "This help", "help"),
    Key("t", "next_theme", "t", "Next colour theme"),
    Key("y", "copy", "y", "Copy the row, or the screen, to the clipboard"),
    Key("e", "export_csv", "e", "Write the table to a CSV file in the current directory"),
    Key("E", "export_json", "E", "Write all that is known now to a JSON file"),
    Key("q", "quit", "q", "Quit; Ctrl-C does so from anywhere", "quit"),
)

TABLE_KEYS = (
    Key("slash", "filter", "/", "Show only rows with these words", "filter"),
    Key("escape", "clear", "Esc", "Give up the filter, or go back"),
    Key("s", "sort(1)", "s", "Sort by the next column", "sort"),
    Key("S", "sort(-1)", "S", "Sort by the previous column"),
    Key("r", "reverse", "r", "Turn the order around"),
)

MOVES = (
    ("Up Down j k", "Move; PgUp PgDn by a screenful, Home End g G to an end"),
    ("Left Right", "Scroll the columns of a wide table"),
    ("Enter", "Open the row: a tenant's requests, or all of one request"),
    ("mouse", "Click a header to sort, a row to go there, twice to open it; wheel to move"),
)

REPLAY_KEYS = (
    Key("left_square_bracket", "seek(-5)", "[", "Recording: 5 s back"),
    Key("right_square_bracket", "seek(5)", "]", "Recording: 5 s on"),
    Key("left_curly_bracket", "seek(-60)", "{", "Recording: a minute back"),
    Key("right_curly_bracket", "seek(60)", "}", "Recording: a minute on"),
)
