"""`log-level`: what all processes of the engine write to stderr, until it ends."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

COMMAND = Command(
    name="log-level",
    summary="Set what all processes log",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    while_stopping=True,
    arguments=(
        Argument(
            name="level",
            kind=ArgumentKind.TEXT,
            help="the lowest level that is written",
            required=True,
            positional=True,
            choices=LEVELS,
        ),
    ),
    result=(
        ResultField("log_level", "text", "the level now"),
        ResultField("before", "text", "the level before"),
        ResultField("in_force", "boolean", "true: every process goes by it"),
        ResultField("waiting_for", "list of texts", "processes that do not yet"),
    ),
)
