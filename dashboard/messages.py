"""Everything widgets and screens tell each other and the app."""

from dataclasses import dataclass

from textual.message import Message


@dataclass
class RowChosen(Message):
    """Somebody opened the row of this identity."""

    identity: str


@dataclass
class ScreenWanted(Message):
    """Somebody wants to see another screen, of requests perhaps those of one tenant."""

    name: str
    tenant: str = ""


@dataclass
class CommandWanted(Message):
    """Somebody wants to give a command, written as on a command line."""

    text: str
