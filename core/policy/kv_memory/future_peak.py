"""How much KV memory the running requests will hold at the most, with one more among them.

Owns: the arithmetic of the peak. Never knows: where the numbers come from. Every request grows by a
token a step until its end and then gives everything back, so the sum can only be largest just
before one of them ends: with what is left sorted descending,

    peak = max over i of (left_i · i + Σ held_j over j ≤ i)

This is the admission test of LightLLM's "past-future scheduler" (Gong et al., ASPLOS 2025). Blocks
that several hold come free with the last holder only, so the sum never counts for more than what is
held in truth.
"""

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]


class FuturePeak:
    """The running requests of a replica, ready to be asked about one more."""

    def __init__(self, left: Tokens, held: Tokens, num_shared: int = 0) -> None:
        """Sort them: `left` and `held` in tokens, int64[n]; `num_shared` tokens of the sum of
        `held` are counted more than once.
        """
        negative = -left
        order = negative.argsort()
        self._negative_left: Tokens = negative[order]
        self.left: Tokens = -self._negative_left
        self._held: Tokens = held[order].cumsum()
        self.total = int(self._held[-1]) if len(left) else 0
        self._num_shared = num_shared
        self._growth: Tokens = self.left * np.arange(1, len(left) + 1)
        self._growth_behind: Tokens = self._growth + self.left  # with one more before them

    def peak(self) -> int:
        """Return the most tokens that they will hold."""
        bounded = np.minimum(self._held, self.total - self._num_shared)
        return int((self._growth + bounded).max(initial=0))

    def peak_with(self, left: int, held: int) -> int:
        """Return the same if a request with `left` tokens to come and `held` ones joins them."""
        place = int(self._negative_left.searchsorted(-left))
        in_truth = self.total + held - self._num_shared
        held_before = int(self._held[place - 1]) if place else 0
        peak = left * (place + 1) + min(held_before + held, in_truth)
        if place:
            before = np.minimum(self._held[:place], in_truth)
            peak = max(peak, int((self._growth[:place] + before).max()))
        if place < len(self.left):
            behind = np.minimum(self._held[place:] + held, in_truth)
            peak = max(peak, int((self._growth_behind[place:] + behind).max()))
        return peak
