"""What it costs to bring back a request that gave its memory away.

Owns: the two prices, of computing its tokens again and of copying their KV out and in, and the
choice between them. Never knows: who gives, or why. For l tokens

    recompute = a·l + b·l²/2            swap = t0 + 2·l·kv_bytes / bandwidth

with a and b of the replica's cost model. Without one, tokens are counted, and nothing is swapped:
the two could not be compared.
"""

import numpy as np
import numpy.typing as npt

from core.policy.base import Relief, ReplicaLoad
from core.policy.cost_model import CostModel
from core.policy.prices import TOKEN_PRICES, Prices, modelled_prices
from core.policy.settings import PolicySettings

SWAP_MARGIN = 1.25  # copies must be so much cheaper than computing anew
SWAP_FIXED_NS = 200_000  # t0: two plans carry copies
Costs = npt.NDArray[np.float64]


class RestoreCosts:
    """Prices by replica; they hold until its cost model is replaced."""

    def __init__(self, settings: PolicySettings, model: CostModel | None) -> None:
        """Start with one model for all replicas, or with none."""
        self._block_size = settings.block_size
        self._bytes_per_ns = settings.tuning.swap_gb_per_s
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

    def swap_ns(self, num_tokens: int, block_bytes: int) -> float:
        """Return the cost of copying so many tokens out and in."""
        kv_bytes = num_tokens * block_bytes / self._block_size
        return SWAP_FIXED_NS + 2 * kv_bytes / self._bytes_per_ns

    def relief(self, load: ReplicaLoad, num_tokens: int, num_blocks: int) -> Relief:
        """Return how a request with so many computed tokens comes back for less."""
        has_model = load.replica in self._prices or self._common is not None
        has_room = 0 < num_blocks <= load.num_free_host_blocks
        if not (has_model and has_room and load.block_bytes and self._bytes_per_ns):
            return Relief.RECOMPUTE
        recompute_ns = self.recompute(load.replica, np.array([num_tokens], np.int32))[0]
        swap_ns = self.swap_ns(num_tokens, load.block_bytes)
        return Relief.SWAP if SWAP_MARGIN * swap_ns < recompute_ns else Relief.RECOMPUTE
