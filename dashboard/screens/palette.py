"""The command palette: type a command, or choose one from the list.

Owns: the line and the list. Returns the line, to be parsed; None if it was given up.
"""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from dashboard.commands import matching, usage
from ipc.control.declaration import Effect


class Palette(ModalScreen[str | None]):
    """An input over a list of commands."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Give up", show=False),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("tab", "complete", show=False, priority=True),
    ]

    def __init__(self, text: str = "", *, readonly: bool = False) -> None:
        """Begin with `text`; with `readonly` only commands that look are listed."""
        super().__init__()
        self._readonly = readonly
        self.line = Input(text, placeholder="a command and its arguments", id="line")
        self.options = OptionList(id="commands")
        self.help_label = Label("", id="usage", markup=False)

    def compose(self) -> ComposeResult:
        """The line, how the command is typed, and the list."""
        yield Vertical(self.line, self.help_label, self.options, classes="dialog")

    def on_mount(self) -> None:
        """Type at once."""
        self.options.can_focus = False
        self.line.focus()
        self._list()

    def on_input_changed(self) -> None:
        """List what still fits."""
        self._list()

    def on_input_submitted(self) -> None:
        """Take the line; of one word that is no whole command, the chosen one."""
        text = self.line.value.strip()
        chosen = self._chosen()
        if len(text.split()) <= 1 and chosen:
            text = chosen
        self.dismiss(text or None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the command that was clicked."""
        self.dismiss(str(event.option.id))

    def action_move(self, step: int) -> None:
        """Move in the list."""
        (self.options.action_cursor_down if step > 0 else self.options.action_cursor_up)()
        self._explain()

    def action_complete(self) -> None:
        """Write the chosen command into the line."""
        chosen = self._chosen()
        if chosen:
            self.line.value = f"{chosen} "
            self.line.cursor_position = len(self.line.value)

    def _list(self) -> None:
        commands = [
            command
            for command in matching(self.line.value)
            if not self._readonly or command.effect is Effect.READ
        ]
        self.options.clear_options()
        for command in commands:
            mark = "!" if command.effect is Effect.WRITE else " "
            self.options.add_option(
                Option(
                    f"{mark} {command.name:14} {command.summary}".replace("[", r"\["), command.name
                )
            )
        self.options.highlighted = 0 if commands else None
        self._explain()

    def _chosen(self) -> str:
        index = self.options.highlighted
        return str(self.options.get_option_at_index(index).id) if index is not None else ""

    def _explain(self) -> None:
        chosen = self._chosen()
        by_name = {command.name: command for command in matching("")}
        self.help_label.update(usage(by_name[chosen]) if chosen in by_name else "no such command")
