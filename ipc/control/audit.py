"""`audit`: the last commands that changed something; from the audit log, by an admin worker."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)

DEFAULT_COMMANDS = 100
MAX_COMMANDS = 200

COMMAND = Command(
    name="audit",
    summary="Show the last commands that changed something: who, what, before and after",
    destination=Destination.WORKER,
    effect=Effect.READ,
    arguments=(
        Argument(
            name="limit",
            kind=ArgumentKind.INTEGER,
            help=f"at most so many (default {DEFAULT_COMMANDS})",
            minimum=1,
            maximum=MAX_COMMANDS,
        ),
    ),
    result=(
        ResultField(
            "commands",
            "list of records",
            "per command, oldest first: time, worker, actor, command, args, code, error, result, "
            "step; those that failed and callers without the key too",
        ),
    ),
)
