"""The question before a command that changes something. Only y says yes."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label


class Confirmation(ModalScreen[bool]):
    """A question and two keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes", show=False),
        Binding("n,escape,q", "dismiss(False)", "No", show=False),
    ]

    def __init__(self, question: str) -> None:
        """Ask `question`."""
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question in a frame."""
        yield Vertical(
            Label(self._question, classes="question", markup=False),
            Label("y yes   n no   (it is written into the audit log)", markup=False),
            classes="dialog",
        )
