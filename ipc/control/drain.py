"""`drain`: take no new work on a replica, or on the whole engine; what runs goes on to its end."""

from ipc.control.arguments import REPLICA
from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="drain",
    summary="Take no new requests; running ones finish",
    destination=Destination.SCHEDULER,
    effect=Effect.WRITE,
    while_stopping=True,
    arguments=(REPLICA,),
    confirm="Stop taking new requests on {target}?",
    result=(
        ResultField("draining", "boolean", "true: no new requests are admitted there"),
        ResultField("before", "boolean", "whether it was draining already"),
    ),
)
