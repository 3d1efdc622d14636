"""Should a request start on this replica now, or be left for another one?

Owns: the comparison of replicas for one request. Never knows: why the request is next. Cost of a
replica = what it still has to prefill, a fixed number of tokens for each running request, and the
tokens of the request that its cache does not hold.
"""

from collections.abc import Callable, Iterable

from core.request import Request
from core.scheduler.replica import Replica

TOKENS_PER_RUNNING_REQUEST = 128  # what a running request weighs, in prefill tokens
STALLED_AFTER_NS = 1_000_000_000  # a replica that owes a result for so long attracts nothing


def better_elsewhere(
    request: Request,
    here: Replica,
    others: Iterable[Replica],
    fits: Callable[[Request, Replica], bool],
    patience_tokens: int,
    now_ns: int,
) -> bool:
    """Tell whether another replica is worth waiting for; only those where `request` fits are.

    One that can plan at once wins if it is cheaper at all; a busy one must be cheaper by
    `patience_tokens`, about a step's work, because the request would wait for that step's end.
    """
    cost_here = _cost(request, here)
    for other in others:
        if _is_stalled(other, now_ns) or not fits(request, other):
            continue
        patience = 0 if other.can_plan else patience_tokens
        if _cost(request, other) + patience < cost_here:
            return True
    return False


def _is_stalled(replica: Replica, now_ns: int) -> bool:
    in_flight = replica.in_flight
    return bool(in_flight) and now_ns - in_flight[0].planned_ns > STALLED_AFTER_NS


def _cost(request: Request, replica: Replica) -> int:
    table = replica.table
    running = TOKENS_PER_RUNNING_REQUEST * table.num_active
    uncached = request.num_tokens - replica.kv.hit_tokens(request)
    return table.outstanding_prefill_tokens() + running + uncached
