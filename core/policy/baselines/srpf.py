"""Shortest remaining prompt first, with a fixed token budget."""

from core.policy.baselines.urgency import UrgencyPolicy
from core.policy.queues.place_queue import Place
from core.request import Request


class SrpfPolicy(UrgencyPolicy):
    """The best mean time to the first token; long prompts may wait without end."""

    def urgency(self, request: Request, remaining: int) -> Place:
        """Return (tokens left to prefill, arrival time, arrival number)."""
        return (remaining, request.arrival_ns, request.order)
