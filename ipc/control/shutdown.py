"""`shutdown`: end the engine, giving running requests time to finish."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)

COMMAND = Command(
    name="shutdown",
    summary="Stop the engine",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    while_stopping=True,
    arguments=(
        Argument(
            name="drain",
            kind=ArgumentKind.NUMBER,
            help="seconds running requests get to finish (default: scheduler.drain_timeout_ms)",
            minimum=0.0,
            maximum=3600.0,
        ),
    ),
    confirm="Stop engine {name}?",
    result=(
        ResultField("stopping", "boolean", "true: the supervisor has begun to stop"),
        ResultField("drain_s", "number", "seconds running requests get"),
    ),
)
