"""Small arrays to the device and back, without the host waiting for the device.

Owns: pinned memory and the event that tells when it may be read. Never knows: what the numbers
mean. All arrays of a call go as one piece, since each copy costs as much as some kernels. Pinned
memory comes from torch's pool, which gives a piece out again when its copy is done. On the CPU
nothing is pinned and nothing waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.executor.backend import ValueT_co

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

    def fetch(self, tensors: Sequence[Tensor]) -> "Arrays":
        """Begin to bring int32 or float32 `tensors` here."""
        piece = torch.cat([tensor.contiguous().view(torch.int32).view(-1) for tensor in tensors])
        host = torch.empty(piece.shape, dtype=torch.int32, pin_memory=self._is_pinned)
        host.copy_(piece, non_blocking=True)
        return Arrays(host, self.mark(), [(tensor.shape, tensor.dtype) for tensor in tensors])

    def mark(self) -> "Mark":
        """Return this place in the queue of the device."""
        if not self._is_pinned:
            return Mark(None)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return Mark(event)


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the queue of the device; None: there is no queue."""

    event: torch.cuda.Event | None

    def is_here(self) -> bool:
        """Tell whether the device has come so far."""
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def get(self) -> None:
        """Wait until it has."""
        if self.event is not None:
            self.event.synchronize()


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays on their way from the device, in one piece that is complete at the `mark`."""

    host: Tensor
    mark: Mark
    forms: list[tuple[torch.Size, torch.dtype]]

    def is_here(self) -> bool:
        """Tell whether `get` would wait."""
        return self.mark.is_here()

    def get(self) -> list[Array]:
        """Wait for the arrays."""
        self.mark.get()
        parts = torch.split(self.host, [shape.numel() for shape, _ in self.forms])
        return [
            part.view(dtype).view(shape).numpy()
            for part, (shape, dtype) in zip(parts, self.forms, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Arriving(Generic[ValueT_co]):
    """What is made of arrays once they are here; see `core.executor.backend.Answer`."""

    arrays: Arrays
    make: Callable[[list[Array]], ValueT_co]

    def is_here(self) -> bool:
        """Tell whether `get` would wait."""
        return self.arrays.is_here()

    def get(self) -> ValueT_co:
        """Wait for the arrays, and make it."""
        return self.make(self.arrays.get())


def packed_bytes(arrays: Sequence[Array]) -> int:
    """Return the size of the piece that `send` makes of these arrays, bytes."""
    return sum(_padded(array.nbytes) for array in arrays)


def _places(arrays: Sequence[Array]) -> list[int]:
    sizes = [_padded(array.nbytes) for array in arrays]
    return [sum(sizes[:index]) for index in range(len(sizes))]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
