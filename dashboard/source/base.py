"""What the app asks of a source, wherever its frames come from."""

from collections.abc import Mapping
from typing import Protocol

from dashboard.frame import Frame

Record = dict[str, object]


class ControlError(Exception):
    """A command was not carried out; the message says why, in one line."""


class Source(Protocol):
    """Frames, and a way to give commands."""

    title: str
    """What is shown instead of the engine's name if there is no frame yet."""

    takes_commands: bool
    """Whether `call` can do anything at all."""

    def read(self) -> Frame:
        """Return the newest frame, at once; a source that has lost its engine returns its last
        frame as GONE, or an empty one."""

    def call(self, command: str, args: Mapping[str, object]) -> Record:
        """Give a control command and return its result; may take seconds, so it is run in a
        thread. Raises ControlError."""
