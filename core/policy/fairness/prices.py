"""What computed tokens cost their flow, in whole units.

Owns: the prices, the arithmetic of a charge, and when prices change. Never knows: who pays. With
`time` a unit is a nanosecond of the device, by the cost model; with `tokens`, or without a model, a
unit is a thousandth of a token, an output token counting as two.

    prompt tokens   n·a + n·(context + n/2)·b
    decode          d + context·e
    holding memory  a share `kv_price` of a step's charges for the whole pool, see `shares`

Prices hold for an epoch, so that no bound moves while it is counted; the next epoch begins no
sooner than `price_epoch_s` later, and only if the model has changed in the meantime.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.config.scheduling import PolicyConfig
from core.policy.cost_model import CostModel, StepWork

Charges = npt.NDArray[np.float64]  # of single requests: exact as long as they are below 2^53
TYPICAL_DECODES = 32
TYPICAL_CHUNK = 256
TYPICAL_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Prices:
    """Units for a prompt token and for a decode, and for each token of context of both."""

    prefill_token: float
    prefill_pair: float  # for each (token, context token) pair
    decode: float
    decode_context: float

    def prefill(self, num_tokens: int, context: int) -> int:
        """Return the charge of computing `num_tokens` of a prompt behind `context` tokens.

        It is a difference, n·(context + n/2) = ((context + n)² − context²) / 2, so that a prompt
        costs the same to the unit in whatever pieces it is computed.
        """
        return self._first(context + num_tokens) - self._first(context)

    def decodes(self, contexts: npt.NDArray[np.int32]) -> Charges:
        """Return the charges of one decode each at `contexts`, int32[n]: whole numbers [n]."""
        if not self.decode_context:
            return np.full(len(contexts), round(self.decode), np.float64)
        units = contexts.astype(np.float64)
        units *= self.decode_context
        units += self.decode
        np.rint(units, out=units)
        return units

    def _first(self, num_tokens: int) -> int:
        """Return the charge of the first `num_tokens` of a prompt."""
        return round(num_tokens * (self.prefill_token + self.prefill_pair * num_tokens / 2))


TOKEN_PRICES = Prices(1000.0, 0.0, 2000.0, 0.0)


class PriceBook:
    """The prices in force, epoch by epoch."""

    def __init__(self, tuning: PolicyConfig, model: CostModel | None) -> None:
        """Begin epoch 1 with the prices of `model`; None: nothing is known of durations yet."""
        self.epoch = 1
        self._epoch_ns = tuning.price_epoch_s * NS_PER_S
        self._by_time = tuning.charge == "time"
        self._begun_ns = 0
        self.prices = self._current(model)

    @property
    def is_time(self) -> bool:
        """Whether a unit is a nanosecond."""
        return self.prices is not TOKEN_PRICES

    def follow(self, model: CostModel | None, now_ns: int) -> bool:
        """Begin another epoch if it is time and `model` has changed; True = it has begun."""
        if now_ns < self._begun_ns + self._epoch_ns and self._begun_ns:
            return False
        self._begun_ns = now_ns
        prices = self._current(model)
        if prices == self.prices:
            return False
        self.prices = prices
        self.epoch += 1
        return True

    def _current(self, model: CostModel | None) -> Prices:
        return modelled_prices(model) if self._by_time and model is not None else TOKEN_PRICES


def modelled_prices(model: CostModel) -> Prices:
    """Return the marginal device times of `model` around a typical step, the fixed time shared by
    its tokens.
    """
    num_tokens = TYPICAL_DECODES + TYPICAL_CHUNK
    base = StepWork(
        TYPICAL_CHUNK, 0, TYPICAL_CHUNK**2 / 2, TYPICAL_DECODES,
        TYPICAL_DECODES * TYPICAL_CONTEXT, TYPICAL_DECODES,
    )  # fmt: skip
    base_ns = model.duration_ns(base)
    fixed = model.duration_ns(StepWork()) / num_tokens

    def slope(changed: StepWork, units: float) -> float:
        return max(0.0, (model.duration_ns(changed) - base_ns) / units)

    pairs = TYPICAL_CHUNK * TYPICAL_CONTEXT
    pair = slope(base._replace(prefill_pairs=base.prefill_pairs + pairs), pairs)
    more = base.with_prefill(TYPICAL_CHUNK, 0)
    prefill = slope(more, TYPICAL_CHUNK) - pair * TYPICAL_CHUNK / 2
    contexts = TYPICAL_DECODES * TYPICAL_CONTEXT
    context = slope(base._replace(decode_context=base.decode_context + contexts), contexts)
    doubled = base._replace(
        num_decodes=2 * TYPICAL_DECODES, num_outputs=base.num_outputs + TYPICAL_DECODES
    )
    decode = slope(doubled, TYPICAL_DECODES)
    return Prices(max(1.0, prefill) + fixed, pair, max(1.0, decode) + fixed, context)
