"""Urgency first while there is time, density when there is not: after ProServe (2025).

A prompt that could still wait stands by its latest start. Once that is within a boundary from now
it competes by density, what it gains for the time it takes: the shortest first. One that can no
longer make it comes last. With little load the first rule decides, with much load the second.
"""

from core.policy.base import Step
from core.policy.baselines.urgency import UrgencyPolicy
from core.policy.cost_model import CostModel, StepWork
from core.policy.queues.place_queue import Place, PlaceQueue
from core.policy.settings import PolicySettings
from core.request import Request

NEVER_NS = 1 << 62
DEFAULT_BOUNDARY_NS = 2_000_000_000
NEAR, FAR, LATE = 0, 1, 2


class UrgencyDensityPolicy(UrgencyPolicy):
    """Waiting requests move from far to near to late as time passes, each once."""

    def __init__(
        self,
        settings: PolicySettings,
        model: CostModel,
        *,
        boundary_ns: int = DEFAULT_BOUNDARY_NS,
    ) -> None:
        """Start with nobody waiting."""
        super().__init__(settings)
        self._model = model
        self._boundary_ns = boundary_ns
        self._near = PlaceQueue(lambda request: (request.prompt_len, request.order))
        self._late = PlaceQueue(lambda request: (request.arrival_ns, request.order))
        self._now_ns = 0

    def urgency(self, request: Request, remaining: int) -> Place:
        """Return (near, length), (far, latest start) or (late, arrival), and the arrival number."""
        latest_ns = self._latest_start_ns(request, remaining)
        if latest_ns < self._now_ns:
            return (LATE, request.arrival_ns, request.order)
        if latest_ns < self._now_ns + self._boundary_ns:
            return (NEAR, remaining, request.order)
        return (FAR, latest_ns, request.order)

    def place(self, request: Request) -> Place:
        """Return (latest start, arrival number) of the whole prompt: it never changes."""
        return (FAR, self._latest_start_ns(request, request.prompt_len), request.order)

    def remove(self, request: Request) -> None:
        """Forget a waiting `request`."""
        queues = (self._near, self._late, self._queue)
        next(queue for queue in queues if request in queue).remove(request)

    def fill(self, step: Step) -> None:
        """Let requests move, then grant."""
        self._now_ns = step.now_ns
        self._move(self._queue, self._near, step.now_ns + self._boundary_ns)
        self._move_late()
        super().fill(step)

    def next_waiting(self, step: Step) -> Request | None:
        """Return the densest of the near, else the most urgent of the far, else a late one."""
        for queue in (self._near, self._queue, self._late):
            if first := queue.first(1):
                return first[0]
        return None

    def waiting_urgency(self, request: Request) -> Place:
        """Return the urgency by the queue in which `request` waits."""
        return self.urgency(request, request.prompt_len)

    def check_integrity(self) -> None:
        """Assert that all queues are whole."""
        for queue in (self._near, self._queue, self._late):
            queue.check_integrity()

    def _move(self, source: PlaceQueue, target: PlaceQueue, until_ns: int) -> None:
        while (first := source.first(1)) and self.place(first[0])[1] < until_ns:
            source.remove(first[0])
            target.add(first[0])

    def _move_late(self) -> None:
        """The densest come to the front, so it is there that lateness matters."""
        while (first := self._near.first(1)) and self.place(first[0])[1] < self._now_ns:
            self._near.remove(first[0])
            self._late.add(first[0])

    def _latest_start_ns(self, request: Request, remaining: int) -> int:
        alone_ns = self._model.duration_ns(StepWork().with_prefill(remaining, 0))
        return (request.ttft_deadline_ns or NEVER_NS) - alone_ns
