"""The dashboard's app: it reads a source a few times a second and shows what follows from it.

Owns: the pace, freezing, and which screen is shown. Never knows: what screens draw, where frames
come from, or how a command comes about (`dashboard.conversation`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.notifications import SeverityLevel

from dashboard.conversation import Conversation
from dashboard.export import ExportError, write_csv, write_json
from dashboard.format import ASCII, Glyphs, duration
from dashboard.frame import Frame
from dashboard.history import History, View
from dashboard.journal import Journal
from dashboard.keymap import SCREENS
from dashboard.lines import Line
from dashboard.messages import CommandWanted, ScreenWanted
from dashboard.pictures.alerts import alerts
from dashboard.pictures.help import help_lines
from dashboard.recording import RecordingError, RecordingWriter
from dashboard.screens.base import DashboardScreen
from dashboard.screens.events import EventsScreen
from dashboard.screens.executors import ExecutorsScreen
from dashboard.screens.lines_dialog import LinesDialog
from dashboard.screens.overview import OverviewScreen
from dashboard.screens.promises import PromisesScreen
from dashboard.screens.requests import RequestsScreen
from dashboard.screens.tenants import TenantsScreen
from dashboard.source.base import Record, Source
from dashboard.source.replay import ReplaySource
from dashboard.widgets.header_bar import state_line, tabs_line

THEMES = (
    "textual-dark",
    "textual-light",
    "nord",
    "gruvbox",
    "dracula",
    "solarized-light",
    "ansi-dark",
    "ansi-light",
)


@dataclass(frozen=True, slots=True)
class Options:
    """How to show."""

    glyphs: Glyphs
    hertz: float = 4.0
    readonly: bool = False
    folder: Path = Path()  # where exported files go


class DashboardApp(App[None]):
    """`headrace top`."""

    CSS_PATH = "dashboard.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", "Quit, also from a dialog", show=False, priority=True)
    ]

    def __init__(
        self, source: Source, options: Options, recorder: RecordingWriter | None = None
    ) -> None:
        """Show `source`, and write its frames into `recorder` if there is one."""
        super().__init__()
        self.source = source
        self.options = options
        self.view: View | None = None
        self.is_frozen = False
        self._recorder = recorder
        self._history = History()
        self._journal = Journal()
        self._conversation = Conversation(self, source, self.ask, readonly=options.readonly)
        glyphs = options.glyphs
        self.pages: dict[str, DashboardScreen] = {
            "overview": OverviewScreen(glyphs),
            "tenants": TenantsScreen(glyphs),
            "requests": RequestsScreen(glyphs, self.ask),
            "executors": ExecutorsScreen(glyphs),
            "promises": PromisesScreen(glyphs),
            "events": EventsScreen(glyphs, self.ask, self._journal),
        }
        self.page_name = SCREENS[0]

    def on_mount(self) -> None:
        """Begin to read."""
        self.set_class(self.options.glyphs is ASCII, "ascii")
        for name, page in self.pages.items():
            self.install_screen(page, name)
        self.push_screen(self.page_name)
        self.set_interval(1 / self.options.hertz, self.tick)
        self.call_after_refresh(self.tick)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a message as it is: the brackets of a key path are no markup."""
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=markup)

    def tick(self) -> None:
        """Read a frame and show it."""
        frame = self.source.read()
        self._journal.look(frame)
        self._record(frame)
        view = self._history.push(frame)
        if not self.is_frozen or self.view is None:
            self.view = view
        self._show(view)

    def _record(self, frame: Frame) -> None:
        if self._recorder is None:
            return
        try:
            self._recorder.write(frame)
        except RecordingError as error:
            self._recorder = None
            self.notify(str(error), severity="error")

    def _show(self, now: View) -> None:
        page = self.pages[self.page_name]
        if not page.is_mounted or self.view is None:
            return
        page.show_header(self._header(now))
        if not self.is_frozen:
            page.show(self.view)

    def _header(self, now: View) -> list[Line]:
        clock = time.strftime("%H:%M:%S", time.localtime(now.frame.wall_s))
        width, glyphs = self.size.width, self.options.glyphs
        found = alerts(now) if self.page_name != "overview" else []
        alert = found[0] if found else None
        return [
            state_line(now.frame, tuple(self._marks()), clock, width, glyphs, alert),
            tabs_line(self.page_name),
        ]

    def _marks(self) -> list[str]:
        marks = ["FROZEN"] if self.is_frozen else []
        marks += ["READONLY"] if self.options.readonly else []
        if isinstance(self.source, ReplaySource):
            place, length = self.source.position_s, self.source.length_s
            state = "REPLAY" if self.source.is_playing else "PAUSED"
            marks.append(f"{state} {duration(place)}/{duration(length)}")
        elif self._recorder is not None:
            marks.append("REC full" if self._recorder.is_full else "REC")
        return marks

    def action_go(self, name: str) -> None:
        """Show a screen."""
        self.page_name = name
        self.switch_screen(name)
        if self.view is not None:
            self.call_after_refresh(self._arrive)

    def _arrive(self) -> None:
        page = self.pages[self.page_name]
        if self.view is not None and page.is_mounted:
            page.show_header(self._header(self.view))
            page.show(self.view)

    def action_go_next(self, step: int) -> None:
        """Show the next screen."""
        self.action_go(SCREENS[(SCREENS.index(self.page_name) + step) % len(SCREENS)])

    def on_screen_wanted(self, message: ScreenWanted) -> None:
        """Show a screen that somebody asked for."""
        page = self.pages["requests"]
        if message.name == "requests" and isinstance(page, RequestsScreen) and message.tenant:
            page.show_tenant(message.tenant)
        self.action_go(message.name)

    def action_freeze(self) -> None:
        """Keep what is shown, or go on; of a recording, stop it or go on."""
        if isinstance(self.source, ReplaySource):
            self.source.is_playing = not self.source.is_playing
        else:
            self.is_frozen = not self.is_frozen
        self.tick()

    def action_seek(self, step_s: int) -> None:
        """Move about in a recording."""
        if not isinstance(self.source, ReplaySource):
            return
        self._history = History()
        for frame in self.source.seek(self.source.position_s + step_s):
            self._history.push(frame)
        self.tick()

    def action_help(self) -> None:
        """Show the help."""
        shown = self.pages[self.page_name].table()
        columns = shown.table.columns if shown is not None else ()
        self.push_screen(LinesDialog("Help", help_lines(columns)))

    def action_next_theme(self) -> None:
        """Use the next colours."""
        here = THEMES.index(self.theme) if self.theme in THEMES else -1
        self.theme = THEMES[(here + 1) % len(THEMES)]
        self.clear_notifications()
        self.notify(f"theme {self.theme}", timeout=2)
        self.call_after_refresh(self._arrive)

    def action_copy(self) -> None:
        """Copy the row under the cursor, or the screen, to the terminal's clipboard."""
        page = self.pages[self.page_name]
        shown = page.table()
        if shown is not None and shown.table.rows:
            row = shown.table.records()[shown.table.cursor_index]
            self.copy_to_clipboard("\t".join(row.values()))
        else:
            self.copy_to_clipboard(page.text())
        self.notify("copied", timeout=2)

    def action_export_csv(self) -> None:
        """Write the table on the screen, or the tenants, to a file."""
        shown = self.pages[self.page_name].table()
        name = self.page_name if shown is not None else "tenants"
        page = self.pages["tenants"] if shown is None else self.pages[self.page_name]
        view = page.table()
        if self.view is None or view is None:
            return
        if isinstance(page, TenantsScreen):
            view.table.show(page.rows(self.view))
        self._export(
            lambda: write_csv(self.options.folder, name, view.table.records(), time.time())
        )

    def action_export_json(self) -> None:
        """Write all that is known now to a file."""
        view = self.view
        if view is not None:
            self._export(lambda: write_json(self.options.folder, view))

    def _export(self, write: Callable[[], Path]) -> None:
        try:
            self.notify(f"wrote {write()}")
        except ExportError as error:
            self.notify(str(error), severity="error")

    async def ask(self, command: str, args: Mapping[str, object]) -> Record:
        """Give a command in a thread; raises ControlError."""
        return await asyncio.to_thread(self.source.call, command, args)

    def action_palette(self) -> None:
        """Let somebody type a command."""
        self._converse("")

    def on_command_wanted(self, message: CommandWanted) -> None:
        """Give a command that a screen proposes, after the same questions."""
        self._converse(message.text)

    def _converse(self, text: str) -> None:
        engine = self.view.frame.name if self.view is not None else self.source.title
        self.run_worker(self._conversation.hold(text, engine), group="palette", exclusive=True)
