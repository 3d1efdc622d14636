"""Policies that compute the most urgent prompt first, whether it waits or is under way.

Owns: the merge of both in the order of an urgency that may change while a prompt is computed, and
stopping where the step's budget ends. Never knows: what urgency is, how large the budget is;
subclasses say that.
"""

from collections.abc import Callable

from core.policy.base import Blocked, Grant, Step
from core.policy.plain.ordered import OrderedPolicy
from core.policy.queues.place_queue import Place, PlaceOf
from core.request import Request


class Budget:
    """How many tokens a step still takes: here, all that the step has left."""

    def __init__(self, step: Step) -> None:
        """Begin with what the decodes leave."""
        self.step = step

    def most(self, request: Request) -> int:
        """Return how many tokens of `request` fit now."""
        return self.step.tokens_left

    def spend(self, request: Request, context: int, num_tokens: int) -> None:
        """Take in that `num_tokens` behind `context` tokens of `request` are in the step."""


class UrgencyPolicy(OrderedPolicy):
    """While a prompt waits its urgency is its place; when a later one is more urgent, the one under
    way pauses and keeps its memory.
    """

    def place(self, request: Request) -> Place:
        """Return the urgency of the whole prompt."""
        return self.urgency(request, request.prompt_len)

    def urgency(self, request: Request, remaining: int) -> Place:
        """Return a key, smallest first, when `remaining` prompt tokens are left to compute."""
        raise NotImplementedError

    def waiting_urgency(self, request: Request) -> Place:
        """Return the urgency of a waiting `request`."""
        return self.place(request)

    def budget(self, step: Step) -> Budget:
        """Return what may be spent on prompts in `step`."""
        return Budget(step)

    def fill(self, step: Step) -> None:
        """Grant to the most urgent prompt, then the next, until one does not fit any more."""
        budget = self.budget(step)
        contenders = self._contenders(step)
        while step.tokens_left and (request := contenders.next()) is not None:
            wanted, remaining = budget.most(request), step.remaining(request)
            if wanted <= 0:
                return
            grant = step.grant(request, wanted)
            contenders.settle(grant)
            budget.spend(request, request.num_tokens - remaining, grant.num_tokens)
            if grant.num_tokens and step.remaining(request):
                return

    def next_waiting(self, step: Step) -> Request | None:
        """Return the most urgent waiting prompt."""
        return next(iter(self._queue.first(1)), None)

    def _contenders(self, step: Step) -> "_Contenders":
        under_way = [(self.urgency(r, step.remaining(r)), r) for r in step.prefills()]
        return _Contenders(under_way, self.waiting_urgency, lambda: self.next_waiting(step), step)


class _Contenders:
    """The prompts of a step by urgency: those under way, merged with those that wait."""

    def __init__(
        self,
        under_way: list[tuple[Place, Request]],
        urgency: PlaceOf,
        next_waiting: Callable[[], Request | None],
        step: Step,
    ) -> None:
        self._under_way = sorted(under_way, reverse=True)
        self._urgency = urgency
        self._next_waiting = next_waiting
        self._may_start = step.may_start_requests
        self._is_new = False

    def next(self) -> Request | None:
        """Return the most urgent; its grant must be settled before the next."""
        waiting = self._next_waiting() if self._may_start else None
        first = self._under_way[-1] if self._under_way else None
        self._is_new = waiting is not None and (first is None or self._urgency(waiting) < first[0])
        if self._is_new:
            return waiting
        return self._under_way.pop()[1] if first else None

    def settle(self, grant: Grant) -> None:
        """A waiting prompt that is blocked has a claim on what it lacks: none starts after it."""
        if self._is_new and grant.blocked is not Blocked.NOTHING:
            self._may_start = False
