"""The way of a command: what somebody types, what is missing, whether it is meant, its answer.

Owns: the order of the questions, and what is said at the end. Never knows: how a command travels.
"""

from typing import Any

from textual.app import App

from dashboard.commands import Typed, TypingError, parse, question
from dashboard.lines import plain
from dashboard.pictures.answer import answer
from dashboard.screens.argument_form import ArgumentForm
from dashboard.screens.asking import Ask
from dashboard.screens.confirmation import Confirmation
from dashboard.screens.lines_dialog import LinesDialog
from dashboard.screens.palette import Palette
from dashboard.source.base import ControlError, Source
from ipc.control.declaration import Effect


class Conversation:
    """Dialogs of `app`, one after the other, in a worker of it."""

    def __init__(self, app: App[Any], source: Source, ask: Ask, *, readonly: bool) -> None:
        """Give commands with `ask`; with `readonly` none that changes anything."""
        self._app = app
        self._source = source
        self._ask = ask
        self._readonly = readonly

    async def hold(self, text: str, engine: str) -> None:
        """Ask for a command if there is no `text`, then for all that is missing, and give it to the
        engine of that name.
        """
        if not self._source.takes_commands:
            self._complain("a recording takes no commands")
            return
        if not text:
            chosen = await self._app.push_screen_wait(Palette(readonly=self._readonly))
            text = chosen or ""
        if not text:
            return
        try:
            typed: Typed | None = parse(text)
        except TypingError as error:
            self._complain(str(error))
            return
        if typed is not None and typed.fault:
            typed = await self._app.push_screen_wait(ArgumentForm(typed))
        if typed is not None and await self._is_meant(typed, engine):
            await self._give(typed)

    async def _is_meant(self, typed: Typed, engine: str) -> bool:
        if self._readonly and typed.command.effect is Effect.WRITE:
            self._complain(f"{typed.command.name}: this dashboard is read-only")
            return False
        asked = question(typed.command, typed.args, engine)
        return not asked or await self._app.push_screen_wait(Confirmation(asked)) is True

    async def _give(self, typed: Typed) -> None:
        told = " ".join([typed.command.name, *map(str, typed.args.values())])
        try:
            result = await self._ask(typed.command.name, typed.args)
        except ControlError as error:
            self._complain(str(error))
            return
        if typed.command.effect is Effect.WRITE:
            self._app.notify(f"{told}: {', '.join(map(plain, answer(result)[:3]))}")
        else:
            self._app.push_screen(LinesDialog(told, answer(result)))

    def _complain(self, text: str) -> None:
        self._app.notify(text, severity="error")
