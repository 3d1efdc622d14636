"""`undrain`: the opposite of `drain`."""

from ipc.control.declaration import (
    LAST_REPLICA,
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)

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
            maximum=LAST_REPLICA,
        ),
    ),
    result=(
        ResultField("draining", "boolean", "false: new requests are admitted there"),
        ResultField("before", "boolean", "whether it was draining"),
    ),
)
