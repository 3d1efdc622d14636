"""The two numbers behind the reason for which a request waits, where blocks and rows are compared.

Owns: which numbers belong to which reason. Never knows: the reason itself; that is the policy's.
They are worked out when somebody asks, of the replica that is nearest to taking the request, and
left out if by now they are no reason any more.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from core.policy.base import Blocked, Wait
from core.request import Request
from core.scheduler.replica import Replica
from core.scheduler.scheduler import Scheduler

Numbers = tuple[int, int]  # what there is, or would be; what may be


def with_numbers(scheduler: Scheduler, request: Request, wait: Wait) -> Wait:
    """Return `wait` with the numbers of blocks, rows or prompts that were compared."""
    compare = _COMPARED.get(wait.blocked)
    replicas = [each for each in scheduler.replicas if each.starts_requests]
    if compare is None or wait.measured or wait.threshold or not replicas:
        return wait
    found = [compare(scheduler, request, replica) for replica in replicas]
    measured, threshold = min(found, key=lambda numbers: numbers[0] - numbers[1])
    if measured < threshold:
        return wait
    return replace(wait, measured=measured, threshold=threshold)


def _blocks(scheduler: Scheduler, request: Request, replica: Replica) -> Numbers:
    routing = scheduler.routing
    needed = routing.quote(request, replica).num_needed + routing.headroom(request, replica)
    return needed, replica.kv.pool.num_available


def _rows(scheduler: Scheduler, _request: Request, replica: Replica) -> Numbers:
    return replica.table.num_active, scheduler.settings.max_num_seqs


def _partial_prefills(scheduler: Scheduler, _request: Request, replica: Replica) -> Numbers:
    return replica.table.num_partial(), scheduler.settings.max_num_partial_prefills


_COMPARED: Mapping[Blocked, Callable[[Scheduler, Request, Replica], Numbers]] = {
    Blocked.MEMORY: _blocks,
    Blocked.HEADROOM: _blocks,
    Blocked.SEQUENCES: _rows,
    Blocked.PARTIAL_PREFILLS: _partial_prefills,
}
