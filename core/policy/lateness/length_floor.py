"""Long prompts do not pay for everyone: what keeps refusals even over the lengths of prompts.

Owns: how often prompts of each length were refused lately, and the lead that evens it out. Never
knows: who is refused, or why. Requests wait in the order of deadline − lead · time for the prompt.

    lead 0   at the deadline a short prompt can still be served and a long one cannot: refusals
             fall on long prompts alone; the most requests keep their promise
    lead 1   the latest start; it passes for short and long alike, but most of what is refused
             saves little work

Below capacity the lead hardly matters. Above it, it follows the ratio between the quartiles of
lengths, so that the longest quarter is refused about RATIO times as often as the shortest.
"""

from math import log, log2

import numpy as np

RATIO = 1.5
FIRST_LEAD = 0.5
LEAD_MAX = 1.5
GAIN = 0.1
REFUSALS_BETWEEN = 16  # two corrections
MEMORY = 1024  # outcomes; older ones count half, and so on
NUM_BINS, BINS_IN_DOUBLING = 192, 8
QUARTERS = 4


class LengthFloor:
    """The lead of a policy."""

    def __init__(self) -> None:
        """Start between both ends."""
        self.lead = FIRST_LEAD
        self._outcomes = np.zeros(NUM_BINS)
        self._refusals = np.zeros(NUM_BINS)
        self._num_new = 0

    def served(self, num_tokens: int) -> None:
        """Take in that a prompt was started."""
        self._outcomes[_bin(num_tokens)] += 1

    def refused(self, num_tokens: int) -> None:
        """Take in that a prompt was refused; now and then this moves the lead."""
        self._outcomes[_bin(num_tokens)] += 1
        self._refusals[_bin(num_tokens)] += 1
        self._num_new += 1
        if self._num_new < REFUSALS_BETWEEN:
            return
        self._num_new = 0
        rates = self.rates()
        error = log(rates[-1] / rates[0] / RATIO)
        self.lead = min(max(self.lead + GAIN * error, 0.0), LEAD_MAX)
        if self._outcomes.sum() > MEMORY:
            self._outcomes /= 2
            self._refusals /= 2

    def refusals(self) -> tuple[float, ...]:
        """Return the share refused in each quarter, divided by RATIO in the longest."""
        rates = self.rates()
        return (*rates[:-1], rates[-1] / RATIO)

    def quarter(self, num_tokens: int) -> int:
        """Return in which quarter of lengths a prompt lies, 0 for the shortest."""
        ends = self._outcomes[: _bin(num_tokens) + 1].sum() - self._outcomes[_bin(num_tokens)] / 2
        return int(QUARTERS * ends / max(1.0, self._outcomes.sum() + 1e-9))

    def rates(self) -> list[float]:
        """Return the share refused in each quarter of lengths, shortest first; a bin across a
        border counts on both sides.
        """
        ends = np.cumsum(self._outcomes)
        borders = np.linspace(0.0, ends[-1], QUARTERS + 1)
        upper = np.minimum(ends, borders[1:, None])
        lower = np.maximum(ends - self._outcomes, borders[:-1, None])
        outcomes = np.maximum(upper - lower, 0.0)  # [quarters, bins]
        refusals = outcomes @ (self._refusals / np.maximum(self._outcomes, 1e-9))
        rates: list[float] = ((refusals + 0.5) / (outcomes.sum(axis=1) + 1.0)).tolist()
        return rates


def _bin(num_tokens: int) -> int:
    return min(int(BINS_IN_DOUBLING * log2(max(1, num_tokens))), NUM_BINS - 1)
