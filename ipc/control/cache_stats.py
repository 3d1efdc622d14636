"""`cache stats`: what the prefix caches hold; less, from the board, if the scheduler is silent."""

from ipc.control.arguments import ONLY_TENANT
from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="cache-stats",
    group="cache",
    summary="Show what the prefix caches hold and how often they helped",
    destination=Destination.SCHEDULER,
    effect=Effect.READ,
    arguments=(ONLY_TENANT,),
    result=(
        ResultField(
            "replicas",
            "list of records",
            "per replica: num_blocks, cached_blocks (their content can be found again), "
            "evictable_blocks (of those: nobody holds them)",
        ),
        ResultField("query_tokens", "integer", "tokens of all requests that were looked up so far"),
        ResultField("hit_tokens", "integer", "of those: tokens that were found"),
        ResultField(
            "stale", "boolean", "true if the scheduler did not answer and this is from the board"
        ),
        ResultField("as_of_age_s", "number", "only when stale: age of the data, seconds"),
    ),
)
