"""`set`: change one setting of a class or a tenant while the engine runs."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
)
from ipc.control.directory_results import CHANGE_RESULT

COMMAND = Command(
    name="set",
    summary="Change a setting of a class or a tenant",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    arguments=(
        Argument(
            name="path",
            kind=ArgumentKind.TEXT,
            help="classes.NAME.KEY or tenants.NAME.KEY, e.g. tenants.acme.weight",
            required=True,
            positional=True,
        ),
        Argument(
            name="value",
            kind=ArgumentKind.TEXT,
            help="the new value, as in the configuration file",
            required=True,
            positional=True,
            max_length=4096,
        ),
    ),
    confirm="Set {target}?",
    result=CHANGE_RESULT,
)
