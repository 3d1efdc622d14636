"""What it costs to bring back a request that gave its memory away.

Owns: the two prices, of computing its tokens again and of copying their KV out and in. Never knows:
who gives, or why. For l tokens

    recompute = a·l + b·l²/2            swap = t0 + 2·l·kv_bytes / bandwidth

with a and b of the replica's cost model, and the bandwidth that its executor has measured, or else
the configured one. Without one, tokens are counted, and nothing is swapped:
the two could not be compared.
"""

import numpy as np
import numpy.typing as npt

from core.policy.base import ReplicaLoad
from core.policy.cost_model import CostModel
from core.policy.fairness.prices import TOKEN_PRICES, Prices, modelled_prices
from core.policy.settings import PolicySettings

SWAP_MARGIN = 1.25  # copies must be so much cheaper than computing anew
SWAP_FIXED_NS = 200_000  # t0: two plans carry copies
Costs = npt.NDArray[np.float64]


class RestoreCosts:
    """Prices by replica; they hold until its cost model is replaced."""

    def __init__(self, settings: PolicySettings, model: CostModel | None) -> None:
        """Start with one model for all replicas, or with none."""
        self._block_size = settings.block_size
        self._usual_gb_per_s = settings.tuning.swap_gb_per_s
        self._common = None if model is None else modelled_prices(model)
        self._prices: dict[int, Prices] = {}  # by replica

    def calibrate(self, replica: int, model: CostModel) -> None:
        """Let `model` tell what steps of `replica` cost."""
        self._prices[replica] = modelled_prices(model)

    def recompute(self, replica: int, num_tokens: npt.NDArray[np.int32]) -> Costs:
        """Return the cost of computing so many tokens each again, [n]: ns if there is a model."""
        prices = self._prices.get(replica) or self._common or TOKEN_PRICES
        pairs = num_tokens.astype(np.float64) ** 2 / 2
        costs: Costs = prices.prefill_token * num_tokens + prices.prefill_pair * pairs
        return costs

    def swap(
        self,
        load: ReplicaLoad,
        num_tokens: npt.NDArray[np.int32],
        num_blocks: npt.NDArray[np.int32],
    ) -> Costs:
        """Return the cost of copying so many tokens each out and in, [n], with the margin by which
        that must be cheaper; infinite where it cannot be, or cannot be compared.
        """
        has_model = load.replica in self._prices or self._common is not None
        if not (has_model and load.block_bytes and self._usual_gb_per_s):
            return np.full(len(num_tokens), np.inf)
        kv_bytes = num_tokens * (load.block_bytes / self._block_size)
        bytes_per_ns = load.swap_gb_per_s or self._usual_gb_per_s
        costs = SWAP_MARGIN * (SWAP_FIXED_NS + 2 * kv_bytes / bytes_per_ns)
        has_room = (num_blocks > 0) & (num_blocks <= load.num_free_host_blocks)
        swaps: Costs = np.where(has_room, costs, np.inf)
        return swaps
