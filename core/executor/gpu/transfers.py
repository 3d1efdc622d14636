"""Small arrays to the device and back, without the host waiting for the device.

Owns: pinned memory and the event that tells when it may be read. Never knows: what the numbers
mean. All arrays of a call go as one piece, since each copy costs as much as some kernels. Pinned
memory comes from torch's pool, which gives a piece out again when its copy is done. On the CPU
nothing is pinned and nothing waits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNMENT = 16  # bytes, of each array within its piece
TORCH_DTYPES = {
    np.dtype(np.int8): torch.int8,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}
Array = npt.NDArray[Any]


class Transfers:
    """The way between this process and `device`; all in the order of its current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._is_pinned = device.type == "cuda"

    def send(self, arrays: Sequence[Array], into: Tensor | None = None) -> list[Tensor]:
        """Return the arrays as tensors on the device, views of one piece of memory.

        `into` uint8 is that piece; arrays of the same shapes then have the same addresses.
        """
        places = _places(arrays)
        size = packed_bytes(arrays)
        host = torch.empty(size, dtype=torch.uint8, pin_memory=self._is_pinned)
        target = host.numpy()
        for array, place in zip(arrays, places, strict=True):
            octets = np.ascontiguousarray(array).view(np.uint8).ravel()
            target[place : place + array.nbytes] = octets
        if into is None:
            piece = host.to(self.device, non_blocking=True)
        else:
            piece = into[:size].copy_(host, non_blocking=True)
        return [
            piece[place : place + array.nbytes].view(TORCH_DTYPES[array.dtype]).view(array.shape)
            for array, place in zip(arrays, places, strict=True)
        ]

    def fetch(self, tensors: Sequence[Tensor]) -> Callable[[], list[Array]]:
        """Begin to bring int32 or float32 `tensors` here; the result waits for them."""
        words = [tensor.contiguous().view(torch.int32).view(-1) for tensor in tensors]
        piece = torch.cat(words)
        host = torch.empty(piece.shape, dtype=torch.int32, pin_memory=self._is_pinned)
        host.copy_(piece, non_blocking=True)
        event = torch.cuda.Event() if self._is_pinned else None
        if event is not None:
            event.record()

        def arrays() -> list[Array]:
            if event is not None:
                event.synchronize()
            parts = host.split([len(each) for each in words])
            return [
                part.view(tensor.dtype).view(tensor.shape).numpy()
                for part, tensor in zip(parts, tensors, strict=True)
            ]

        return arrays


def packed_bytes(arrays: Sequence[Array]) -> int:
    """Return the size of the piece that `send` makes of these arrays, bytes."""
    return sum(_padded(array.nbytes) for array in arrays)


def _places(arrays: Sequence[Array]) -> list[int]:
    sizes = [_padded(array.nbytes) for array in arrays]
    return [sum(sizes[:index]) for index in range(len(sizes))]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
