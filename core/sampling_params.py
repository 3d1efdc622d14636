"""What a client may ask of the sampler, checked once at the edge.

Knows nothing of rows, tensors or HTTP: plain data with bounds. The executor's row layout
(`core.scheduler.plan.row_dtype`) holds the same fields as fixed-layout numbers.
"""

import math
from dataclasses import dataclass

MAX_STOP_TOKEN_IDS = 16
MAX_LOGIT_BIAS = 300
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 1024
NO_LOGPROBS = -1
SMALLEST_POSITIVE = math.nextafter(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one choice.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1.0 and `min_p` 0.0 are off. `num_logprobs` and
    `num_prompt_logprobs` are -1 when not wanted, 0 for the chosen token only, k for the k best
    besides. `seed` is the operation's seed (server-made if the client gave none), `choice` its
    index; together with the output index they key the Philox stream, so a retry draws the same
    numbers.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    choice: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_logprobs: int = NO_LOGPROBS
    num_prompt_logprobs: int = NO_LOGPROBS

    def __post_init__(self) -> None:
        """Raise ValueError for a value out of bounds, also when decoded from a peer's frame."""
        _bound("temperature", self.temperature, 0.0, 2.0)
        _bound("top_p", self.top_p, SMALLEST_POSITIVE, 1.0)
        _bound("top_k", self.top_k, 0, 2**31 - 1)
        _bound("min_p", self.min_p, 0.0, 1.0)
        _bound("repetition_penalty", self.repetition_penalty, SMALLEST_POSITIVE, 1e9)
        _bound("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _bound("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _bound("seed", self.seed, 0, 2**64 - 1)
        _bound("choice", self.choice, 0, 2**31 - 1)
        _bound("min_tokens", self.min_tokens, 0, 2**31 - 1)
        _bound("number of stop_token_ids", len(self.stop_token_ids), 0, MAX_STOP_TOKEN_IDS)
        _bound("number of logit_bias", len(self.logit_bias), 0, MAX_LOGIT_BIAS)
        _bound("num_logprobs", self.num_logprobs, NO_LOGPROBS, MAX_TOP_LOGPROBS)
        _bound("num_prompt_logprobs", self.num_prompt_logprobs, NO_LOGPROBS, MAX_TOP_LOGPROBS)


def _bound(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} = {value} is out of range: {low} to {high}")
