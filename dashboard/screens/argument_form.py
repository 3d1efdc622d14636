"""Asks for the arguments of a command, one line each, until they fit its declaration."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from dashboard.commands import Typed, TypingError, parse_value
from ipc.control.declaration import Argument, ArgumentValue


class ArgumentForm(ModalScreen[Typed | None]):
    """An input per argument; Enter gives them all if they fit, or goes on to the next one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Give up", show=False)
    ]

    def __init__(self, typed: Typed) -> None:
        """Ask for what `typed` has not yet."""
        super().__init__()
        self._command = typed.command
        self._inputs = {
            argument.name: Input(
                str(typed.args.get(argument.name, "")), id=f"argument-{argument.name}"
            )
            for argument in typed.command.arguments
        }
        self.fault_label = Label("", classes="fault", markup=False)

    def compose(self) -> ComposeResult:
        """What the command does, then the inputs, then what is wrong."""
        rows = []
        for argument in self._command.arguments:
            rows += [Label(_label(argument), markup=False), self._inputs[argument.name]]
        title = Label(f"{self._command.name}: {self._command.summary}", markup=False)
        yield Vertical(
            title, VerticalScroll(*rows, can_focus=False), self.fault_label, classes="dialog"
        )

    def on_mount(self) -> None:
        """Begin with the first empty input."""
        empty = [each for each in self._inputs.values() if not each.value]
        (empty or list(self._inputs.values()))[0].focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Be done if all fits, otherwise go on to the next one."""
        typed = self._typed()
        if typed is not None:
            self.dismiss(typed)
            return
        inputs = list(self._inputs.values())
        inputs[(inputs.index(event.input) + 1) % len(inputs)].focus()

    def _typed(self) -> Typed | None:
        args: dict[str, ArgumentValue] = {}
        try:
            for argument in self._command.arguments:
                text = self._inputs[argument.name].value.strip()
                if text:
                    args[argument.name] = parse_value(argument, text)
        except TypingError as error:
            self.fault_label.update(str(error))
            return None
        typed = Typed(self._command, args)
        self.fault_label.update(typed.fault)
        return None if typed.fault else typed


def _label(argument: Argument) -> str:
    need = "" if argument.required else ", may stay empty"
    return f"{argument.name}: {argument.help} ({argument.bounds}{need})"
