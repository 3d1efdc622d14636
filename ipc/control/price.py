"""`price`: what the promises have cost since the engine was started; from the board."""

from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="price",
    summary="Show what promises and reserves have cost: idle tokens, work done twice, refusals",
    destination=Destination.BOARD,
    effect=Effect.READ,
    result=(
        ResultField("computed_tokens", "integer", "tokens computed, prompts and outputs"),
        ResultField(
            "unused",
            "list of records",
            "per reason: tokens that steps left unused while somebody waited, and their share of "
            "those plus all computed ones",
        ),
        ResultField(
            "again",
            "record",
            "tokens computed again after a preemption, and tokens swapped out to host memory",
        ),
        ResultField("preemptions", "integer", "how often a request had to give memory back"),
        ResultField("refused", "record", "requests refused or shed while they waited, by reason"),
        ResultField(
            "reserves",
            "list of records",
            "per class that has some: what is kept for it, and what of it is in use now",
        ),
        ResultField("stale", "boolean", "true if the scheduler's page is older than the limit"),
        ResultField("as_of_age_s", "number", "age of the scheduler's page, seconds"),
    ),
)
