"""`audit`: the commands that changed something; from the audit log, by an admin worker."""

from dataclasses import replace

from ipc.control.arguments import ONLY_TENANT, SINCE
from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)

DEFAULT_COMMANDS = 100
MAX_COMMANDS = 500

COMMAND = Command(
    name="audit",
    summary="Show the commands that changed something: who, what, before and after",
    destination=Destination.WORKER,
    effect=Effect.READ,
    arguments=(
        replace(SINCE, help=f"{SINCE.help}; default: all that was kept"),
        replace(ONLY_TENANT, help="only those about this tenant"),
        Argument(
            name="command",
            kind=ArgumentKind.TEXT,
            help="only those of this name, as in pause or add-tenant",
            max_length=64,
        ),
        Argument(
            name="limit",
            kind=ArgumentKind.INTEGER,
            help=f"at most so many, the newest (default {DEFAULT_COMMANDS})",
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
        ResultField(
            "complete",
            "boolean",
            "false: only the end of the log was looked through, because nothing is kept, as "
            "configured, or the database cannot be read now",
        ),
    ),
)
