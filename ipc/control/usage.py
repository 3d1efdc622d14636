"""`usage`: what tenants have used, over restarts of the engine; from the state directory."""

from dataclasses import replace

from ipc.control.arguments import ONLY_TENANT, SINCE
from ipc.control.declaration import (
    Command,
    Destination,
    Effect,
    ResultField,
)

COMMAND = Command(
    name="usage",
    summary="Show what tenants have used: requests, tokens, refusals",
    destination=Destination.WORKER,
    effect=Effect.READ,
    arguments=(
        ONLY_TENANT,
        replace(
            SINCE,
            help="from the hour so far back on (12h, 7d), or from a date or hour in UTC "
            "(2026-11-30, 2026-11-30T15); default: all that was kept",
        ),
    ),
    result=(
        ResultField(
            "usage",
            "list of records",
            "per tenant: requests (of clients, also those that were refused), prompt_tokens, "
            "cached_tokens (of those), generated_tokens, rejected by reason",
        ),
        ResultField("since", "text", "begin of the first hour that counts, UTC; empty = all"),
        ResultField(
            "kept",
            "boolean",
            "false: only in memory, as configured, or because the database cannot be written now",
        ),
        ResultField("stale", "boolean", "true if the scheduler's page is older than the limit"),
        ResultField("as_of_age_s", "number", "age of the scheduler's page, seconds"),
    ),
)
