"""`show`: one request, and why it waits; from the scheduler, which alone knows."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)

COMMAND = Command(
    name="show",
    summary="Show a request and why it waits",
    destination=Destination.SCHEDULER,
    effect=Effect.READ,
    arguments=(
        Argument(
            name="request",
            kind=ArgumentKind.TEXT,
            help="operation id (as in the client's answer) or request number, exactly",
            required=True,
            positional=True,
            max_length=128,
        ),
    ),
    result=(
        ResultField(
            "requests",
            "list of records",
            "a record per choice: identity, class, status, tokens, KV blocks, preemptions, "
            "deadlines, and for one that waits the reason (`blocked`), the two numbers compared "
            "(`measured`, `threshold`), its `place` in its flow and the predicted start",
        ),
    ),
)
