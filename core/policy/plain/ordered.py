"""Policies in which one total order, the place, decides everything.

Owns: token sharing between prompts by place and length, victims by place, the headroom. Never
knows: what the place is made of; `fcfs`, `priority` and `static` say that.
"""

from collections.abc import Sequence
from math import ceil

from core.policy.base import Blocked, Policy, Preemption, ReplicaLoad, Step
from core.policy.plain.window import PrefillWindow
from core.policy.queues.place_queue import Place, PlaceQueue
from core.policy.settings import PolicySettings
from core.request import Request


class OrderedPolicy(Policy):
    """Half of a step's prompt tokens go to the first prompt, the rest to the shortest of a window.

    A long prompt thus keeps at least half of the speed it would have alone, and short ones behind
    it do not wait for its end. With a window of one prompt (`max_num_partial_prefills` = 1) the
    order is strict.
    """

    def __init__(self, settings: PolicySettings) -> None:
        """Start with nobody waiting."""
        self._settings = settings
        self._queue = PlaceQueue(self.place)

    def place(self, request: Request) -> Place:
        """Return where `request` stands in the order; it never changes."""
        raise NotImplementedError

    def add(self, request: Request) -> None:
        """Let `request` wait at its place."""
        self._queue.add(request)

    def remove(self, request: Request) -> None:
        """Forget a waiting `request`."""
        self._queue.remove(request)

    def fill(self, step: Step) -> None:
        """Grant tokens to prompts until the budget or the window is exhausted."""
        if step.tokens_left == 0:
            return
        window = PrefillWindow(
            step, self._queue, self.place, self._settings.max_num_partial_prefills
        )
        first = window.first()
        if first is None:
            return
        self._grant(window, first, ceil(step.tokens_left / 2))
        while step.tokens_left and (shortest := window.shortest()):
            self._grant(window, shortest, step.tokens_left)

    def make_room(self, step: Step, request: Request) -> bool:
        """Free memory for a waiting `request` that does not fit; True = it may be tried again."""
        return False

    def victim(
        self, candidates: Sequence[Request], beneficiary: Request, load: ReplicaLoad
    ) -> Preemption | None:
        """Return the last of `candidates` in the order."""
        last = max(candidates, key=self.place, default=None)
        return None if last is None else Preemption(last)

    def headroom_blocks(self, request: Request, load: ReplicaLoad) -> int:
        """Return the configured share of the pool; a replica that runs nothing needs none."""
        if load.num_running == 0:
            return 0
        return ceil(self._settings.kv_headroom_fraction * load.num_blocks)

    def check_integrity(self) -> None:
        """Assert that the queue is whole."""
        self._queue.check_integrity()

    def _grant(self, window: PrefillWindow, request: Request, max_tokens: int) -> None:
        grant = window.step.grant(request, max_tokens)
        if grant.blocked is Blocked.MEMORY and self.make_room(window.step, request):
            grant = window.step.grant(request, max_tokens)
        window.settle(request, grant)
