"""`rotate-key`: another API key for a tenant; the key itself never travels."""

from ipc.control.arguments import DIGEST, TENANT
from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
)
from ipc.control.directory_results import CHANGE_RESULT

COMMAND = Command(
    name="rotate-key",
    summary="Give a tenant another API key",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    arguments=(
        TENANT,
        DIGEST,
        Argument(
            name="old",
            kind=ArgumentKind.TEXT,
            help="whether the key before it is still good (default drop)",
            choices=("drop", "keep"),
        ),
    ),
    confirm="Change the key of {target}?",
    result=CHANGE_RESULT,
)
