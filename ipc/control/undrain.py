"""`undrain`: the opposite of `drain`."""

from ipc.control.arguments import REPLICA
from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="undrain",
    summary="Take new requests again after a drain",
    destination=Destination.SCHEDULER,
    effect=Effect.WRITE,
    arguments=(REPLICA,),
    result=(
        ResultField("draining", "boolean", "false: new requests are admitted there"),
        ResultField("before", "boolean", "whether it was draining"),
    ),
)
