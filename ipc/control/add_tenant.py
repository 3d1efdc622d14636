"""`add-tenant`: a new tenant with default settings; the key itself never travels."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
)
from ipc.control.directory_results import CHANGE_RESULT, KEPT

COMMAND = Command(
    name="add-tenant",
    summary="Add a tenant with default settings",
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
        Argument(
            name="digest",
            kind=ArgumentKind.TEXT,
            help="SHA-256 of the API key in hex, as `printf %s KEY | sha256sum` gives it",
            required=True,
            max_length=64,
        ),
    ),
    result=(*CHANGE_RESULT, KEPT),
)
