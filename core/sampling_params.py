"""What a client may ask of the sampler, checked once at the edge.

Knows nothing of rows, tensors or HTTP: plain data with bounds. The executor's row layout
(`core.scheduler.plan.row_dtype`) holds the same fields as fixed-layout numbers.
"""

from dataclasses import dataclass


MAX_STOP_TOKEN_IDS = 16
MAX_LOGIT_BIAS = 300
MAX_TOP_LOGPROBS = 20
NO_LOGPROBS = -1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one choice.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1.0 and `min_p` 0.0 are off. `num_logprobs` and
    `num_prompt_logprobs` are -1 when not wanted, 0 for the chosen token only, k for the k best besides.
    `seed` is the operation's seed (server-made if the client gave none), `choice` its index; together
    with the output index they key the Philox stream, so a retry draws the same numbers.
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
        """Check every bound; a violation is the caller's bug, the edge has already answered the client."""
        assert 0.0 <= self.temperature <= 2.0, self.temperature
        assert 0.0 < self.top_p <= 1.0, self.top_p
        assert self.top_k >= 0, self.top_k
        assert 0.0 <= self.min_p <= 1.0, self.min_p
        assert self.repetition_penalty > 0.0, self.repetition_penalty
        assert -2.0 <= self.presence_penalty <= 2.0, self.presence_penalty
        assert -2.0 <= self.frequency_penalty <= 2.0, self.frequency_penalty
        assert 0 <= self.seed < 2**64, self.seed
        assert self.min_tokens >= 0, self.min_tokens
        assert len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS, len(self.stop_token_ids)
        assert len(self.logit_bias) <= MAX_LOGIT_BIAS, len(self.logit_bias)
        assert NO_LOGPROBS <= self.num_logprobs <= MAX_TOP_LOGPROBS, self.num_logprobs
        assert NO_LOGPROBS <= self.num_prompt_logprobs <= MAX_TOP_LOGPROBS, self.num_prompt_logprobs
