"""`requests`: the live requests, from the scheduler; counts from the board if it is silent."""

from ipc.control.arguments import ONLY_TENANT
from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)

COMMAND = Command(
    name="requests",
    summary="List the live requests",
    destination=Destination.SCHEDULER,
    effect=Effect.READ,
    arguments=(
        ONLY_TENANT,
        Argument(
            name="limit",
            kind=ArgumentKind.INTEGER,
            help="at most so many (default 1000)",
            minimum=1,
            maximum=10_000,
        ),
    ),
    result=(
        ResultField(
            "requests",
            "list of records",
            "per request: request_id, operation_id, tenant, traffic_class, status, replica, "
            "prompt_len, num_output_tokens, max_tokens, num_preemptions, age_s",
        ),
        ResultField("total", "integer", "live requests that match, listed or not"),
        ResultField(
            "tenants", "list of records", "only when stale: per-tenant counts from the board"
        ),
        ResultField(
            "stale", "boolean", "true if the scheduler did not answer and this is from the board"
        ),
        ResultField("as_of_age_s", "number", "only when stale: age of the data, seconds"),
    ),
)
