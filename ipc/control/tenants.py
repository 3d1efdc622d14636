"""`tenants`: what each tenant and class has and should have, from the board: always answered."""

from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="tenants",
    summary="Show tenants and classes: shares, queues, memory, budgets, refusals",
    destination=Destination.BOARD,
    effect=Effect.READ,
    result=(
        ResultField(
            "classes",
            "list of records",
            "per class: paused, weight, share of all service since the start, waiting, running, "
            "KV blocks held and reserved, reserved sequences and step tokens",
        ),
        ResultField(
            "tenants",
            "list of records",
            "per tenant: paused, removed (listed for what it used, until another needs its row), "
            "weight, share due and used (of the last 10 s), waiting, running, KV blocks held and "
            "quota, budget tokens left, preempted, rejected by reason",
        ),
        ResultField(
            "names_left",
            "integer",
            "further tenants that would be told apart if they asked for something now; those after "
            "them share `_other`",
        ),
        ResultField("stale", "boolean", "true if the scheduler's page is older than the limit"),
        ResultField("as_of_age_s", "number", "age of the scheduler's page, seconds"),
    ),
)
