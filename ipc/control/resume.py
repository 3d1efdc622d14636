"""`resume`: end a pause."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
)
from ipc.control.directory_results import CHANGE_RESULT

COMMAND = Command(
    name="resume",
    summary="Start requests of a paused tenant or class again",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    arguments=(
        Argument(
            name="tenant",
            kind=ArgumentKind.TEXT,
            help="this tenant",
            positional=True,
            max_length=63,
        ),
        Argument(
            name="class",
            kind=ArgumentKind.TEXT,
            help="this class of traffic",
            max_length=63,
        ),
    ),
    exactly_one_of=(("tenant", "class"),),
    confirm="Resume {target}?",
    result=CHANGE_RESULT,
)
