"""`restart`: end one process of the engine and start it anew."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)

COMMAND = Command(
    name="restart",
    summary="Restart one process of the engine",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    arguments=(
        Argument(
            name="child",
            kind=ArgumentKind.TEXT,
            help="id of the process as `status` shows it, e.g. executor.0.0",
            required=True,
            positional=True,
            max_length=24,
        ),
    ),
    confirm="Restart {target}?",
    result=(
        ResultField("child", "text", "the process that is being restarted"),
        ResultField("epoch_before", "integer", "its epoch until now; the new one is larger"),
    ),
)
