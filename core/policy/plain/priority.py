"""Strict priority: class, then the client's priority, then arrival."""

from core.policy.base import Step
from core.policy.plain.ordered import OrderedPolicy
from core.policy.queues.place_queue import Place
from core.request import Request
from core.tenancy.classes import TrafficClass

CLASS_RANKS: dict[TrafficClass, int] = {
    TrafficClass.ADMINISTRATIVE: 0,
    TrafficClass.INTERACTIVE: 1,
    TrafficClass.STANDARD: 2,
    TrafficClass.BATCH: 3,
}


class PriorityPolicy(OrderedPolicy):
    """A start that lacks memory takes it from running requests of lower rank, the last first."""

    def place(self, request: Request) -> Place:
        """Return (rank of the class, priority, arrival time, arrival number)."""
        return (*rank(request), request.arrival_ns, request.order)

    def make_room(self, step: Step, request: Request) -> bool:
        """Preempt lower ranks if together they hold enough; memory on its way counts as free."""
        victims = [other for other in step.running() if rank(other) > rank(request)]
        victims.sort(key=self.place, reverse=True)
        if sum(len(victim.block_ids) for victim in victims) < step.missing_blocks(request):
            return False
        preempted = False
        for victim in victims:
            if step.missing_blocks(request) <= 0:
                break
            step.preempt(victim)
            preempted = True
        return preempted


def rank(request: Request) -> tuple[int, int]:
    """Return what must be strictly greater for a request to be preempted by another's start."""
    return (CLASS_RANKS[request.traffic_class], request.priority)
