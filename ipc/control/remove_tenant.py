"""`remove-tenant`: its keys open nothing any more; what it has running goes on to its end."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
)
from ipc.control.directory_results import CHANGE_RESULT, KEPT

COMMAND = Command(
    name="remove-tenant",
    summary="Remove a tenant and its keys; its running requests finish",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    arguments=(
        Argument(
            name="tenant",
            kind=ArgumentKind.TEXT,
            help="name of the tenant",
            required=True,
            positional=True,
            max_length=63,
        ),
    ),
    confirm="Remove {target}?",
    result=(*CHANGE_RESULT, KEPT),
)
