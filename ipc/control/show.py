"""`show`: one request, and why it waits; from the scheduler, which alone knows."""

from ipc.control.arguments import REQUEST
from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="show",
    summary="Show a request and why it waits",
    destination=Destination.SCHEDULER,
    effect=Effect.READ,
    arguments=(REQUEST,),
    result=(
        ResultField(
            "requests",
            "list of records",
            "a record per choice: identity, class, status, tokens, KV blocks, preemptions, "
            "deadlines, and for one that waits the reason (`blocked`), the two numbers compared "
            "(`measured`, `threshold`), its `place` in its flow and the predicted start; what "
            "helps is in docs/waits.md, what to do about a refusal in docs/runbook.md",
        ),
    ),
)
