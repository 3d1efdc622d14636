"""`cancel`: end an operation, a request or a tenant's all; running ones at the step boundary."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)

COMMAND = Command(
    name="cancel",
    summary="Cancel a request, or all requests of a tenant",
    destination=Destination.SCHEDULER,
    effect=Effect.WRITE,
    arguments=(
        Argument(
            name="request",
            kind=ArgumentKind.TEXT,
            help="operation id (as in the client's answer) or request number, exactly",
            positional=True,
            max_length=128,
        ),
        Argument(
            name="tenant",
            kind=ArgumentKind.TEXT,
            help="all requests of this tenant",
            max_length=63,
        ),
    ),
    exactly_one_of=(("request", "tenant"),),
    confirm="Cancel {target}?",
    result=(
        ResultField(
            "cancelled",
            "integer",
            "requests that were ended or will end at the step boundary; 0 = none was alive",
        ),
    ),
)
