"""How long a step takes on a machine, in closed form, for Llama-3-8B in 16 bits.

Owns: the machines by name and their formulas. Never knows: schedulers, noise, traces. Two kinds:

    Roofline      weights and KV streamed, arithmetic and attention computed, overheads; per GPU
    FittedA100    two linear pieces fitted to an A100, published with QoServe (ASPLOS'26 artefact)
"""

from dataclasses import dataclass
from typing import Protocol

from core.clock import NS_PER_S
from core.policy.cost_model import StepWork

NUM_PARAMETERS = 6.979e9
NUM_LM_HEAD_PARAMETERS = 0.525e9
KV_BYTES_PER_TOKEN = 131_072
ATTENTION_FLOP_PER_PAIR = 4 * 32 * 4096  # 4·layers·hidden for each query-key pair
BYTES_PER_PARAMETER = 2
FLOP_PER_PARAMETER = 2
OVERHEAD_S = 1.5e-3


class Hardware(Protocol):
    """A machine: a cost model with a KV cache."""

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into the KV cache."""
        ...

    def duration_ns(self, work: StepWork) -> int:
        """Return the time of a step, ns."""
        ...

    def copy_ns(self, num_tokens: int) -> int:
        """Return the time of copying the KV of so many tokens to host memory or back, ns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A GPU by its bandwidths and rates; 0.9 of its memory, less the weights, holds KV."""

    weight_bandwidth: float  # bytes/s, as reached by matrix products
    arithmetic: float  # FLOP/s, as reached by matrix products
    smoothness: float  # of the passage from bandwidth-bound to compute-bound
    kv_bandwidth: float  # bytes/s, as reached by decode attention
    swap_bandwidth: float  # bytes/s, to host memory or back
    attention: float  # FLOP/s, as reached by prefill attention
    fixed_s: float
    token_s: float
    kv_tokens: int

    def duration_ns(self, work: StepWork) -> int:
        """Return the time of a step, ns."""
        seconds = (
            OVERHEAD_S
            + self._matrix_s(NUM_PARAMETERS, work.num_tokens)
            + self._matrix_s(NUM_LM_HEAD_PARAMETERS, work.num_outputs)
            + work.decode_context * KV_BYTES_PER_TOKEN / self.kv_bandwidth
            + ATTENTION_FLOP_PER_PAIR * work.prefill_pairs / self.attention
            + self.fixed_s
            + self.token_s * work.num_tokens
        )
        return round(seconds * NS_PER_S)

    def copy_ns(self, num_tokens: int) -> int:
        """Return the time of copying the KV of so many tokens to host memory or back, ns."""
        return copy_ns(num_tokens, self.swap_bandwidth)

    def _matrix_s(self, num_parameters: float, num_tokens: int) -> float:
        """Return the time of `num_tokens` through matrices of `num_parameters`."""
        stream_s = BYTES_PER_PARAMETER * num_parameters / self.weight_bandwidth
        compute_s = FLOP_PER_PARAMETER * num_parameters * num_tokens / self.arithmetic
        p = self.smoothness
        return float((stream_s**p + compute_s**p) ** (1 / p))


FittedPiece = tuple[float, float, float, float, float, float]
"""Seconds: constant, per token, prefill token, decode token, decode context, prefill context."""

SMALL_STEP: FittedPiece = (
    0.014936, 5.882475e-5, 2.247956e-5, 3.634519e-5, 1.111258e-7, 7.554773e-7,
)  # fmt: skip
LARGE_STEP: FittedPiece = (
    0.005004, 2.719050e-5, 6.863043e-5, -4.143993e-5, 1.663409e-7, 2.727223e-6,
)  # fmt: skip
SMALL_STEP_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedA100:
    """Above 512 tokens the larger of both pieces, so that more work never takes less time."""

    kv_tokens: int

    def duration_ns(self, work: StepWork) -> int:
        """Return the time of a step, ns."""
        seconds = fitted_s(SMALL_STEP, work)
        if work.num_tokens > SMALL_STEP_TOKENS:
            seconds = max(seconds, fitted_s(LARGE_STEP, work))
        return round(seconds * NS_PER_S)

    def copy_ns(self, num_tokens: int) -> int:
        """Return the time of copying the KV of so many tokens to host memory or back, ns."""
        return copy_ns(num_tokens, A100.swap_bandwidth)


def copy_ns(num_tokens: int, bandwidth: float) -> int:
    """Return the time of moving the KV of so many tokens at `bandwidth` bytes/s, ns."""
    return round(num_tokens * KV_BYTES_PER_TOKEN / bandwidth * NS_PER_S)


def fitted_s(piece: FittedPiece, work: StepWork) -> float:
    """Return the value of one linear piece, seconds."""
    constant, token, prefill, decode, decode_context, prefill_context = piece
    return (
        constant
        + token * work.num_tokens
        + prefill * work.num_prefill_tokens
        + decode * work.num_decodes
        + decode_context * work.decode_context
        + prefill_context * work.prefill_context
    )


A100 = Roofline(
    weight_bandwidth=1.58e12, arithmetic=228e12, smoothness=2.0, kv_bandwidth=1.4e12,
    attention=160e12, fixed_s=0.9e-3, token_s=6.0e-6, kv_tokens=404_000, swap_bandwidth=25e9,
)  # fmt: skip
H100 = Roofline(
    weight_bandwidth=2.60e12, arithmetic=750e12, smoothness=1.6, kv_bandwidth=2.35e12,
    attention=400e12, fixed_s=0.6e-3, token_s=3.0e-6, kv_tokens=404_000, swap_bandwidth=50e9,
)  # fmt: skip
H200 = Roofline(  # extrapolated from the H100 by memory bandwidth
    weight_bandwidth=3.72e12, arithmetic=750e12, smoothness=1.6, kv_bandwidth=3.36e12,
    attention=400e12, fixed_s=0.6e-3, token_s=2.2e-6, kv_tokens=823_000, swap_bandwidth=50e9,
)  # fmt: skip

HARDWARE: dict[str, Hardware] = {
    "a100": A100,
    "h100": H100,
    "h200": H200,
    "qoserve-a100": FittedA100(kv_tokens=400_000),
}
"""The machines that `--hardware` names."""
