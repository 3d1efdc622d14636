"""Arguments that several commands take, declared once.

Owns: their names, bounds and help. Never knows: which command asks. A command that spells one
differently takes a copy of it (`dataclasses.replace`).
"""

from dataclasses import replace

from ipc.control.declaration import LAST_REPLICA, Argument, ArgumentKind

MAX_NAME_LENGTH = 63

TENANT = Argument(
    name="tenant",
    kind=ArgumentKind.TEXT,
    help="name of the tenant",
    required=True,
    positional=True,
    max_length=MAX_NAME_LENGTH,
)

ONLY_TENANT = replace(TENANT, help="only this tenant's", required=False, positional=False)

TENANT_OR_CLASS = (
    replace(TENANT, help="this tenant", required=False),
    Argument(
        name="class",
        kind=ArgumentKind.TEXT,
        help="this class of traffic",
        max_length=MAX_NAME_LENGTH,
    ),
)
"""Of which exactly one is given."""

DIGEST = Argument(
    name="digest",
    kind=ArgumentKind.TEXT,
    help="SHA-256 of the API key in hex, as `printf %s KEY | sha256sum` gives it",
    required=True,
    max_length=64,
)

REQUEST = Argument(
    name="request",
    kind=ArgumentKind.TEXT,
    help="operation id (as in the client's answer) or request number, exactly",
    required=True,
    positional=True,
    max_length=128,
)

REPLICA = Argument(
    name="replica",
    kind=ArgumentKind.INTEGER,
    help="only this replica (default: the whole engine)",
    positional=True,
    minimum=0,
    maximum=LAST_REPLICA,
)

SINCE = Argument(
    name="since",
    kind=ArgumentKind.TEXT,
    help="so far back (30m, 12h, 7d), or from a time in UTC on (2026-11-30, 2026-11-30T15)",
    max_length=32,
)
