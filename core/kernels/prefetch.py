"""What attention reads next, for products to fetch while they compute (see `prefetch.h`).

Owns: the one description that the attention of a model writes and its products read. Never knows:
who gave out the blocks. More than fits the processor's last cache beside the weights of a layer is
left to attention itself.
"""

import ctypes

import numpy as np
import numpy.typing as npt
from torch import Tensor

LINE_BYTES = 64
FETCHED_BYTES_MAX = 8 * 2**20


class _Upcoming(ctypes.Structure):
    """`headrace::Upcoming` of `prefetch.h`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cache", "blocks")),
        *((name, ctypes.c_int32) for name in ("parts", "part_bytes", "num_pieces", "claimed")),
    )


class Upcoming:
    """The blocks of a layer's cache that attention reads next, in the order in which it does."""

    def __init__(self) -> None:
        self._description = _Upcoming()
        self._blocks = np.empty(0, dtype=np.int32)  # keeps the address alive
        self.address = ctypes.addressof(self._description)

    def announce(self, cache: Tensor, blocks: npt.NDArray[np.int32]) -> None:
        """Have `blocks` int32 [n] of `cache` [blocks, parts, part elements] fetched."""
        parts, part_bytes = cache.shape[1], cache.shape[2] * cache.itemsize
        if part_bytes % LINE_BYTES:
            return
        most = FETCHED_BYTES_MAX // (parts * part_bytes)
        description = self._description
        description.cache = cache.data_ptr()
        if blocks is not self._blocks:
            self._blocks = blocks
            description.blocks = blocks.ctypes.data
        description.parts, description.part_bytes = parts, part_bytes
        description.num_pieces = parts * min(len(blocks), most)
        description.claimed = 0

    @property
    def num_claimed(self) -> int:
        """Pieces that products have taken since the last announcement."""
        claimed: int = min(self._description.claimed, self._description.num_pieces)
        return claimed

    def withdraw(self) -> None:
        """Have nothing fetched any more: it is being read."""
        self._description.num_pieces = 0
