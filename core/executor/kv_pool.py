"""The memory of the paged KV cache, and of the blocks that are swapped out of it.

Owns: one anonymous mapping a model, cut into a tensor per layer, another one for swapped blocks,
and the copies between them. Never knows: who holds a block. Pages appear when they are first
written, so an idle engine is small; huge pages are asked for, because attention reads scattered
blocks and 4 KiB pages would miss the TLB on each.
"""

import math
import mmap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.errors import StartError
from core.scheduler.plan import CopyDirection, RecordArray


def allocate_kv_pool(
    num_layers: int, layer_shape: tuple[int, ...], dtype: torch.dtype
) -> list[Tensor]:
    """Return a zeroed tensor of `layer_shape` for each layer; raises StartError."""
    layer_bytes = math.prod(layer_shape) * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, num_layers * layer_bytes, flags=flags)
    except (OSError, OverflowError, ValueError) as error:
        raise StartError(
            f"cannot reserve {num_layers * layer_bytes} bytes for the KV cache ({error}):"
            " lower engine.num_kv_blocks or engine.kv_memory_limit_bytes"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return [
        torch.frombuffer(
            memory, dtype=dtype, count=math.prod(layer_shape), offset=index * layer_bytes
        ).view(layer_shape)
        for index in range(num_layers)
    ]


class SwapSpace:
    """Host memory for `num_blocks` KV blocks of all layers, and the copies to and from the pool."""

    def __init__(self, pool: Sequence[Tensor], num_blocks: int) -> None:
        """Reserve the memory; `pool` is a tensor [pool blocks, …] per layer. Raises StartError."""
        layer_shape = (num_blocks, *pool[0].shape[1:])
        self._num_blocks = num_blocks
        self._pool = pool
        self._host = allocate_kv_pool(len(pool), layer_shape, pool[0].dtype) if num_blocks else []

    def copy(self, copies: RecordArray) -> None:
        """Make COPY[n], those out before those in; IndexError if one is outside its memory."""
        if not len(copies):
            return
        check_copies(copies, len(self._pool[0]), self._num_blocks)
        is_out = copies["direction"] == CopyDirection.OUT
        out, back = copies[is_out], copies[~is_out]
        _copy_blocks(self._pool, self._host, out["block"], out["host_block"])
        _copy_blocks(self._host, self._pool, back["host_block"], back["block"])

    def wait(self) -> None:
        """All copies are made when they are asked for."""


def check_copies(copies: RecordArray, num_blocks: int, num_host_blocks: int) -> None:
    """Raise IndexError if one of COPY[n] names a block outside the pool or the host's memory."""
    _check_range(copies["block"], num_blocks)
    _check_range(copies["host_block"], num_host_blocks)


def _check_range(blocks: npt.NDArray[np.int32], num_blocks: int) -> None:
    if blocks.min() < 0 or blocks.max() >= num_blocks:
        raise IndexError("a copy of a block outside the pool")


def _copy_blocks(
    origin: Sequence[Tensor],
    goal: Sequence[Tensor],
    source: npt.NDArray[np.int32],
    target: npt.NDArray[np.int32],
) -> None:
    """Copy the blocks `source` of each layer of `origin` to the blocks `target` of `goal`."""
    from_blocks = torch.from_numpy(source.astype(np.int64))
    to_blocks = torch.from_numpy(target.astype(np.int64))
    for origin_layer, goal_layer in zip(origin, goal, strict=True):
        goal_layer.index_copy_(0, to_blocks, origin_layer.index_select(0, from_blocks))
