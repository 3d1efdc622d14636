"""`rotate-key`: another API key for a tenant; the key itself never travels."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
)
from ipc.control.directory_results import CHANGE_RESULT, KEPT

COMMAND = Command(
    name="rotate-key",
    summary="Give a tenant another API key",
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
        Argument(
            name="old",
            kind=ArgumentKind.TEXT,
            help="whether the key before it is still good (default drop)",
            choices=("drop", "keep"),
        ),
    ),
    confirm="Change the key of {target}?",
    result=(*CHANGE_RESULT, KEPT),
)
