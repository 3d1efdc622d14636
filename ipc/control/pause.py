"""`pause`: start nothing more of a tenant or a class; what runs goes on to its end."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
)
from ipc.control.directory_results import CHANGE_RESULT

COMMAND = Command(
    name="pause",
    summary="Start nothing more of a tenant or a class; running requests finish",
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
    confirm="Pause {target}?",
    result=CHANGE_RESULT,
)
