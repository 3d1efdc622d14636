"""What a step costs, as a function of what is in it.

Owns: the sums that every cost model reads (`StepWork`), the linear model (`CostBasis`), the time of
a prompt alone, and the search for the largest prompt chunk that fits into a time. Never knows:
hardware or measurements; those are behind `CostModel`.
"""

from typing import NamedTuple, Protocol


class StepWork(NamedTuple):
    """What is in a step, in sums; the context of a row is what it has in the KV cache before it."""

    num_prefill_tokens: int = 0
    prefill_context: int = 0  # Σ context over the prompts
    prefill_pairs: float = 0.0  # Σ n·context + n²/2 over the prompts: query-key pairs
    num_decodes: int = 0
    decode_context: int = 0  # Σ context over the decodes
    num_outputs: int = 0  # rows of which a token is sampled

    @property
    def num_tokens(self) -> int:
        """All tokens computed in the step."""
        return self.num_prefill_tokens + self.num_decodes

    def with_prefill(self, num_tokens: int, context: int, *, ends: bool = False) -> "StepWork":
        """Return this step with a chunk of a prompt more; `ends`: its first token is sampled."""
        return StepWork(
            self.num_prefill_tokens + num_tokens,
            self.prefill_context + context,
            self.prefill_pairs + num_tokens * (context + num_tokens / 2),
            self.num_decodes,
            self.decode_context,
            self.num_outputs + ends,
        )


class CostModel(Protocol):
    """Anything that tells how long a step takes; more work never takes less time."""

    def duration_ns(self, work: StepWork) -> int:
        """Return the time of a step, ns."""
        ...


class CostBasis(NamedTuple):
    """The prices of a step's parts, ns; with any of them negative it would not be monotone."""

    step_ns: float = 0.0
    token_ns: float = 0.0
    pair_ns: float = 0.0  # for each (prompt token, context token)
    decode_context_ns: float = 0.0  # for each context token of a decode
    decode_ns: float = 0.0  # on top of its token

    def duration_ns(self, work: StepWork) -> int:
        """Return the time of a step, ns."""
        return int(self.decodes_ns(work) + self.prefill_ns(work))

    def decodes_ns(self, work: StepWork) -> float:
        """Return the time of a step without its prompts, ns."""
        tokens_ns = (self.token_ns + self.decode_ns) * work.num_decodes
        return self.step_ns + tokens_ns + self.decode_context_ns * work.decode_context

    def prefill_ns(self, work: StepWork) -> float:
        """Return what its prompts add, ns."""
        return self.token_ns * work.num_prefill_tokens + self.pair_ns * work.prefill_pairs

    @property
    def is_usable(self) -> bool:
        """Whether it prices anything, and nothing below zero."""
        return all(price >= 0 for price in self) and any(self)


def alone_ns(model: CostModel, num_tokens: int, step_tokens: int) -> int:
    """Return the time of a prompt in steps of up to `step_tokens` that hold nothing else; it grows
    linearly from the first to the last of them.
    """
    size = min(num_tokens, step_tokens)
    num_full, rest = divmod(num_tokens, size)
    first_ns = model.duration_ns(StepWork().with_prefill(size, 0))
    last_ns = model.duration_ns(StepWork().with_prefill(size, (num_full - 1) * size))
    total_ns = num_full * (first_ns + last_ns) // 2
    if rest:
        total_ns += model.duration_ns(StepWork().with_prefill(rest, num_full * size))
    return total_ns


def largest_chunk(
    model: CostModel, work: StepWork, context: int, max_tokens: int, limit_ns: int, tile: int = 1
) -> int:
    """Return the most tokens of a prompt that keep the step within `limit_ns`.

    That is `max_tokens`, or less and then a multiple of `tile`. Times are nearly linear in the
    number of tokens, so the search interpolates; every third look halves what is left.
    """

    def duration_ns(num_tokens: int) -> int:
        return model.duration_ns(work.with_prefill(num_tokens, context))

    high, high_ns = max_tokens, duration_ns(max_tokens)
    if high_ns <= limit_ns:
        return max_tokens
    low, low_ns = 0, model.duration_ns(work)
    if low_ns > limit_ns:
        return 0
    num_looks = 0
    while high - low > tile:
        share = (limit_ns - low_ns) / (high_ns - low_ns) if num_looks % 3 < 2 else 0.5
        middle = low + max(1, int(share * (high - low)) // tile) * tile
        middle = min(middle, low + (high - low - 1) // tile * tile)
        middle_ns = duration_ns(middle)
        if middle_ns <= limit_ns:
            low, low_ns = middle, middle_ns
        else:
            high, high_ns = middle, middle_ns
        num_looks += 1
    return low
