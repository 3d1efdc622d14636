"""The memory of the paged KV cache.

Owns: one anonymous mapping a model, cut into a tensor per layer. Never knows: who holds a block.
Pages appear when they are first written, so an idle engine is small; huge pages are asked for,
because attention reads scattered blocks and 4 KiB pages would miss the TLB on each.
"""

import math
import mmap

import torch
from torch import Tensor

from core.errors import StartError


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
