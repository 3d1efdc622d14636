"""Copies of KV blocks in all layers at once: swapping out and in, and copy-on-write.

Owns: the copy. Never knows: what a block holds, or who holds it. A swap copies between a pool on
the device and one in pinned host memory, which the device reads and writes by the same addresses;
copy-on-write copies within a pool. A program takes a piece of one block of one layer. The
reference is `torch_copy_blocks`.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

WORD_BYTES = 8
TILE = 2048


def torch_copy_blocks(
    origin: Sequence[Tensor], goal: Sequence[Tensor], source: Tensor, target: Tensor
) -> None:
    """Copy as the reference; blocks int32 [n] as in `BlockCopy`."""
    for from_layer, to_layer in zip(origin, goal, strict=True):
        to_layer[target.long().to(to_layer.device)] = from_layer[
            source.long().to(from_layer.device)
        ].to(to_layer.device)


@triton.jit
def copy_blocks_kernel(
    origin_layers,  # int64 [layers], addresses
    goal_layers,  # int64 [layers], addresses
    source,  # int32 [copies], as the next one
    target,
    WORDS: tl.constexpr,  # of a block of a layer
    TILE: tl.constexpr,
):
    i_copy = tl.program_id(0)
    i_layer = tl.program_id(1)
    o_words = tl.program_id(2) * TILE + tl.arange(0, TILE)
    m_words = o_words < WORDS
    p_origin = tl.load(origin_layers + i_layer).to(tl.pointer_type(tl.int64))
    p_goal = tl.load(goal_layers + i_layer).to(tl.pointer_type(tl.int64))
    from_block = tl.load(source + i_copy).to(tl.int64)
    to_block = tl.load(target + i_copy).to(tl.int64)
    p_from = tl.multiple_of(p_origin + from_block * WORDS, 2)  # 16 bytes at a time
    p_to = tl.multiple_of(p_goal + to_block * WORDS, 2)
    tl.store(p_to + o_words, tl.load(p_from + o_words, mask=m_words), mask=m_words)


class BlockCopy:
    """Copies blocks from the layers of `origin` to those of `goal`, tensors [blocks, …] alike."""

    def __init__(self, origin: Sequence[Tensor], goal: Sequence[Tensor], device: str) -> None:
        """Remember where the layers lie; `device` computes. Raises ValueError for odd layers."""
        self._layers = (*origin, *goal)  # their memory stays
        self._num_layers = len(origin)
        self._block_bytes = origin[0][0].nbytes
        if self._block_bytes % (2 * WORD_BYTES):
            raise ValueError(f"a block of {self._block_bytes} bytes is not a multiple of 16")
        for layer in self._layers:
            if not layer.is_contiguous() or layer[0].nbytes != self._block_bytes:
                raise ValueError("layers must be contiguous and have blocks of one size")
        self._origin_layers = _addresses(origin, device)
        self._goal_layers = _addresses(goal, device)

    def __call__(self, source: Tensor, target: Tensor) -> None:
        """Copy block `source[i]` to block `target[i]`, int32 [n], in every layer.

        All copies of a call are made at the same time: none may read what another one writes.
        """
        words = self._block_bytes // WORD_BYTES
        if len(source):
            grid = len(source), self._num_layers, triton.cdiv(words, TILE)
            copy_blocks_kernel[grid](
                self._origin_layers, self._goal_layers, source, target,
                WORDS=words, TILE=TILE, num_warps=4,
            )  # fmt: skip


def _addresses(layers: Sequence[Tensor], device: str) -> Tensor:
    return torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.int64, device=device)
