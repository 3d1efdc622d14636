"""A step's budget as a time: prompts may be added while the predicted step stays within it.

Owns: the running sums of a step in the making, and the pace at which prompts advance if all steps
were like it. Never knows: where the limit comes from.
"""

from functools import cached_property
from math import ceil

from core.policy.base import DecodeBatch, Step
from core.policy.baselines.urgency import Budget
from core.policy.cost_model import CostModel, largest_chunk
from core.policy.pacing.gaps import decode_work
from core.request import Request

TILE = 16  # tokens; a chunk that does not end its prompt is a multiple of it


class PacedBudget(Budget):
    """`limit_ns` for the whole step, decodes included; an empty step takes one token at least."""

    def __init__(self, step: Step, decodes: DecodeBatch, model: CostModel, limit_ns: int) -> None:
        """Begin with the decodes in the step."""
        super().__init__(step)
        self._model = model
        self._limit_ns = limit_ns
        self._tokens = step.tokens_left
        self._decodes = self._work = decode_work(decodes)

    def most(self, request: Request) -> int:
        """Return how many tokens of `request` fit now."""
        remaining = self.step.remaining(request)
        context = request.num_tokens - remaining
        wanted = min(remaining, self.step.tokens_left)
        fitting = largest_chunk(self._model, self._work, context, wanted, self._limit_ns, TILE)
        return fitting if self._work.num_tokens else max(1, fitting)

    def spend(self, request: Request, context: int, num_tokens: int) -> None:
        """Add the chunk to the sums."""
        if num_tokens:
            ends = context + num_tokens == request.num_tokens
            self._work = self._work.with_prefill(num_tokens, context, ends=ends)

    def time_for(self, num_tokens: int) -> int:
        """Return how long a prompt of `num_tokens` takes alone in steps like this one, ns."""
        if num_tokens <= self._chunk:
            return self._model.duration_ns(self._decodes.with_prefill(num_tokens, 0))
        return ceil(num_tokens / max(1, self._chunk)) * self._limit_ns

    @cached_property
    def _chunk(self) -> int:
        """The tokens of a fresh prompt that fit into such a step."""
        return largest_chunk(self._model, self._decodes, 0, self._tokens, self._limit_ns, TILE)


def tightest_gap_ns(decodes: DecodeBatch) -> int:
    """Return the smallest gap cap among `decodes`, ns; 0 = none has one."""
    caps = decodes.itl_cap_ns
    caps = caps[caps > 0]
    return int(caps.min()) if len(caps) else 0
