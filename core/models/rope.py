"""Rotary position table: cosines and sines of every position, computed once.

Frequencies and angles are float32, as in the reference implementation the models were trained
with. Scaling rules: `linear` divides positions; `llama3` stretches long wavelengths only and
blends between (Llama 3.1's rule).
"""

import math

import torch
from torch import Tensor

from core.models.llama_config import LlamaConfig, RopeScaling


def rope_table(config: LlamaConfig, num_positions: int) -> Tensor:
    """Return float32 [num_positions, head_dim]: cosines of head_dim/2 angles, then their sines."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = _scale(1.0 / config.rope_theta**exponents, config.rope_scaling)
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = positions.unsqueeze(1) * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=1).contiguous()


def _scale(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    if scaling.kind == "none":
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position / wavelengths
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (keep + (1.0 - keep) / scaling.factor)
