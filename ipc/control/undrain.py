"""`undrain`: the opposite of `drain`."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)
from ipc.pages import MAX_PAGE_REPLICAS

COMMAND = Command(
    name="undrain",
    summary="Take new requests again after a drain",
    destination=Destination.SCHEDULER,
    effect=Effect.WRITE,
    arguments=(
        Argument(
            name="replica",
            kind=ArgumentKind.INTEGER,
            help="only this replica (default: the whole engine)",
            positional=True,
            minimum=0,
            maximum=MAX_PAGE_REPLICAS - 1,
        ),
    ),
    result=(
        ResultField("draining", "boolean", "false: new requests are admitted there"),
        ResultField("before", "boolean", "whether it was draining"),
    ),
)
