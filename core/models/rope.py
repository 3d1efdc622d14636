"""Rotary position table: cosines and sines of every position, computed once.

Owns: frequencies by each way of stretching them. Never knows: sequences. Frequencies and angles are
float32, as in the implementation that the models were trained with.

    linear     divides positions by the factor
    dynamic    raises theta for the longest context ("NTK-aware", dynamic form)
    llama3     stretches long wavelengths only and blends between (Llama 3.1)
    yarn       the same between two numbers of turns (Peng et al., YaRN, 2023, section 3.2)
    longrope   divides each frequency by a factor of its own (Ding et al., LongRoPE, 2024)

Where transformers goes by the length of each sequence (dynamic, longrope), keys in the cache would
change under way: here the longest sequence that the engine takes decides, for all of them.
"""

import math

import torch
from torch import Tensor

from core.models.rope_config import RopeConfig


def rope_table(rope: RopeConfig, head_dim: int, num_positions: int) -> Tensor:
    """Return float32 [num_positions, head_dim]: cosines of head_dim/2 angles, then their sines.

    Pairs that do not turn have the angle 0 and stand behind those that do (see `rotary_order`).
    """
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = positions.unsqueeze(1) * _frequencies(rope, num_positions)
    still = head_dim // 2 - angles.shape[1]
    cos = torch.nn.functional.pad(angles.cos() * rope.attention_factor, (0, still), value=1.0)
    sin = torch.nn.functional.pad(angles.sin() * rope.attention_factor, (0, still))
    return torch.cat((cos, sin), dim=1).contiguous()


def rotary_order(head_dim: int, rotary_dim: int) -> Tensor:
    """Return the order of a head's dimensions in which i turns with i + head_dim/2, int64.

    In the files i turns with i + rotary_dim/2, and the dimensions from rotary_dim on stay. Queries
    and keys in the same other order have the same products.
    """
    turning = torch.arange(rotary_dim).chunk(2)
    still = torch.arange(rotary_dim, head_dim).tensor_split(2)
    return torch.cat((turning[0], still[0], turning[1], still[1]))


def _frequencies(rope: RopeConfig, num_positions: int) -> Tensor:
    """Return float32 [rotary_dim / 2], radians a position."""
    if rope.kind == "dynamic":
        return _plain(rope, _raised_theta(rope, num_positions))
    frequencies = _plain(rope, rope.theta)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "longrope":
        is_long = num_positions > rope.original_max_position
        return frequencies / torch.tensor(rope.long_factors if is_long else rope.short_factors)
    if rope.kind in ("llama3", "yarn"):
        kept = _kept_llama3(rope, frequencies) if rope.kind == "llama3" else _kept_yarn(rope)
        return frequencies * (kept + (1.0 - kept) / rope.factor)
    return frequencies


def _plain(rope: RopeConfig, theta: float) -> Tensor:
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / rope.rotary_dim
    return torch.as_tensor(1.0 / theta**exponents)


def _raised_theta(rope: RopeConfig, num_positions: int) -> float:
    stretch = max(1.0, num_positions / rope.original_max_position)
    growth = rope.factor * stretch - (rope.factor - 1.0)
    return float(rope.theta * growth ** (rope.rotary_dim / (rope.rotary_dim - 2)))


def _kept_llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Return how much of each frequency stays: all where it turns often in the old context."""
    turns = rope.original_max_position * frequencies / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    return ((turns - low) / (high - low)).clamp(0.0, 1.0)


def _kept_yarn(rope: RopeConfig) -> Tensor:
    """Return the same, by a ramp over the pairs between `beta_fast` and `beta_slow` turns."""

    def pair_with(turns: float) -> float:
        ratio = rope.original_max_position / (turns * 2 * math.pi)
        return rope.rotary_dim * math.log(ratio) / (2 * math.log(rope.theta))

    first, last = pair_with(rope.beta_fast), pair_with(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.rotary_dim - 1)
    pairs = torch.arange(rope.rotary_dim // 2, dtype=torch.float32)
    return 1.0 - ((pairs - first) / max(last - first, 0.001)).clamp(0.0, 1.0)
