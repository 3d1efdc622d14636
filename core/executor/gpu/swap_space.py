"""KV blocks out to pinned host memory and back, on a stream beside the computing one.

Owns: the order between copies and computing. Never knows: who holds a block. The device reads and
writes the host's memory itself, all layers in one launch. On the CPU everything is in one order.

    copies out   wait for the steps that were queued before: one of them may write the blocks
    copies in    wait for copies out before them alone: no step in flight names their blocks
    a step       waits for the copies of its plan, and for those of plans before it
"""

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from core.errors import StartError
from core.executor.gpu.transfers import Transfers
from core.executor.kv_pool import check_copies
from core.kernels.triton.block_copy import BlockCopy
from core.scheduler.plan import CopyDirection, RecordArray


class DeviceSwapSpace:
    """See `core.executor.device.SwapCopies`."""

    def __init__(self, pool: Sequence[Tensor], num_blocks: int) -> None:
        """Reserve host memory for `num_blocks` of the `pool`, a tensor [blocks, …] per layer."""
        device = pool[0].device
        self._transfers = Transfers(device)
        self._num_pool_blocks, self._num_blocks = len(pool[0]), num_blocks
        is_cuda = device.type == "cuda"
        self._beside = torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]
        if num_blocks:
            host = _pinned_layers(pool, num_blocks)
            self._out = BlockCopy(pool, host, str(device))
            self._in = BlockCopy(host, pool, str(device))

    def copy(self, copies: RecordArray) -> None:
        """Queue COPY[n], those out before those in; IndexError if one is outside its memory."""
        if not len(copies):
            return
        check_copies(copies, self._num_pool_blocks, self._num_blocks)
        is_out = copies["direction"] == CopyDirection.OUT
        out, back = copies[is_out], copies[~is_out]
        if self._beside is not None and len(out):
            self._beside.wait_stream(torch.cuda.current_stream())
        with nullcontext() if self._beside is None else torch.cuda.stream(self._beside):
            blocks = [out["block"], out["host_block"], back["host_block"], back["block"]]
            sent = self._transfers.send([np.ascontiguousarray(each) for each in blocks])
            self._out(sent[0], sent[1])
            self._in(sent[2], sent[3])
        if self._beside is not None:
            torch.cuda.current_stream().wait_stream(self._beside)

    def wait(self) -> None:
        """Wait until all copies are made."""
        if self._beside is not None:
            self._beside.synchronize()


def _pinned_layers(pool: Sequence[Tensor], num_blocks: int) -> list[Tensor]:
    """Return host memory like the layers of the pool; raises StartError."""
    is_pinned = pool[0].device.type == "cuda"
    shape, dtype = (num_blocks, *pool[0].shape[1:]), pool[0].dtype
    try:
        return [torch.zeros(shape, dtype=dtype, pin_memory=is_pinned) for _ in pool]
    except RuntimeError as error:
        size = len(pool) * num_blocks * pool[0][0].nbytes
        raise StartError(
            f"cannot pin {size} bytes of host memory for swapped KV blocks"
            f" ({' '.join(str(error).split())[:120]}): lower engine.swap_memory_bytes"
        ) from error
