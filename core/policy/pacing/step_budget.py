"""What one step still takes of prompts: in time, in tokens, and of one prompt at once.

Owns: what is in the step so far, as work, and the largest chunk that keeps it within its limit.
Never knows: how the limit comes about (`pace`), whose turn it is.

A step whose decodes alone break a gap takes a tile of prompt all the same: the gap is late already,
and prompts would wait for as long as the overload lasts.
"""

from math import inf
from typing import NamedTuple

from core.policy.base import Blocked, Step
from core.policy.cost_model import CostModel, StepWork, largest_chunk
from core.policy.pacing.gaps import UNLIMITED_NS
from core.policy.settings import PolicySettings
from core.request import Request


class StepRoom(NamedTuple):
    """How long a step can become, and how long an empty one lasts, ns; both 0 without a model."""

    longest_ns: int
    fixed_ns: int

    def gain(self, other_ns: int) -> float:
        """Return by what factor prompts are computed faster in it than in steps of `other_ns`,
        decodes left aside; 0: it has no room for them, infinite: the others have none.
        """
        if self.longest_ns <= self.fixed_ns:
            return 0.0
        if other_ns <= self.fixed_ns:
            return inf
        return (1 - self.fixed_ns / self.longest_ns) / (1 - self.fixed_ns / other_ns)


class StepBudget:
    """That of one step."""

    def __init__(
        self,
        step: Step,
        model: CostModel | None,
        work: StepWork,
        limit_ns: int,
        settings: PolicySettings,
        *,
        is_feasible: bool = True,
    ) -> None:
        """Begin with the decodes, `work`; no `model`: tokens alone count."""
        self.work = work
        self.blocked = Blocked.NOTHING  # why the last answer was less than was left
        self._step = step
        self._model = model
        self._limit_ns = limit_ns
        self._tile = settings.tuning.tile_tokens
        self._quantum = settings.tuning.quantum_tokens
        self._is_feasible = is_feasible

    def most(self, request: Request, *, but_last: bool = False) -> int:
        """Return how many tokens of `request` fit now, a quantum at the most; `but_last`: its last
        one is left for later, unless it is all that is left.
        """
        remaining = self._step.remaining(request)
        context = request.num_tokens - remaining
        if request.row < 0 and (cached := self._step.hit_tokens(request)):
            context, remaining = cached, max(1, remaining - cached)
        if but_last:
            remaining = max(1, remaining - 1)
        wanted = min(remaining, self._step.tokens_left, self._quantum)
        self.blocked = Blocked.NOTHING if wanted else Blocked.TOKENS
        fitting = self._fitting(context, wanted)
        if fitting < wanted:
            self.blocked = Blocked.ITL
        return fitting

    def spend(self, request: Request, context: int, num_tokens: int) -> None:
        """Take in that `num_tokens` behind `context` tokens of `request` are in the step."""
        if num_tokens:
            ends = context + num_tokens == request.num_tokens
            self.work = self.work.with_prefill(num_tokens, context, ends=ends)

    def predicted_ns(self) -> int:
        """Return how long the step will last, 0 without a model."""
        return 0 if self._model is None else self._model.duration_ns(self.work)

    def room(self) -> StepRoom:
        """Return how long the step can become."""
        if self._model is None:
            return StepRoom(0, 0)
        full = self.work.with_prefill(self._step.tokens_left, 0)
        longest_ns = min(self._limit_ns, self._model.duration_ns(full))
        return StepRoom(longest_ns, self._model.duration_ns(StepWork()))

    def _fitting(self, context: int, wanted: int) -> int:
        if self._model is None or self._limit_ns == UNLIMITED_NS or not wanted:
            return wanted
        if not self._is_feasible:
            return 0 if self.work.num_prefill_tokens else min(wanted, self._tile)
        return largest_chunk(self._model, self.work, context, wanted, self._limit_ns, self._tile)
