"""`preempt`: a running request gives row and memory back, and returns to its place in the queue."""

from ipc.control.arguments import REQUEST
from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="preempt",
    summary="Let a running request give its memory back; it is computed again when its turn comes",
    destination=Destination.SCHEDULER,
    effect=Effect.WRITE,
    arguments=(REQUEST,),
    confirm="Preempt {target}?",
    result=(
        ResultField("preempted", "integer", "requests that ran and wait now; 0 = none ran"),
        ResultField("blocks", "integer", "KV blocks that they held"),
    ),
)
