"""First come, first served, with a token budget per step."""

from core.policy.plain.ordered import OrderedPolicy
from core.policy.queues.place_queue import Place
from core.request import Request


class FcfsPolicy(OrderedPolicy):
    """The place is the time of arrival. Nobody is preempted to let another start."""

    def place(self, request: Request) -> Place:
        """Return (arrival time, arrival number)."""
        return (request.arrival_ns, request.order)
