"""Weights that 4 bits hold."""

import torch
from torch import Tensor

GROUP = 32
LARGEST = 15


def on_grid(weight: Tensor) -> Tensor:
    """Return `weight` [columns, inputs] rounded to 16 steps for each 32 inputs of a column."""
    pieces = []
    for piece in torch.split(weight.float(), GROUP, dim=1):
        low, high = piece.amin(1, keepdim=True), piece.amax(1, keepdim=True)
        scale = (high - low) / LARGEST
        pieces.append(((piece - low) / scale).round() * scale + low)
    return torch.cat(pieces, dim=1).to(weight.dtype)
