"""What stays on the device from step to step, by row: block tables and the last sampled token.

Owns: which blocks of a row the device has been told. Never knows: what a row is for. A step sends
what has changed since, which for a decode is nothing, or one block; a row given to another sequence
is noticed by its blocks alone. Last tokens are written by the sampler and read by the next step on
the device, so that nobody waits for them to come and go.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.executor.input_batch import Int32Array


class DeviceRows:
    """`num_rows` rows of `max_blocks` blocks."""

    def __init__(self, num_rows: int, max_blocks: int, device: torch.device) -> None:
        self.block_tables = torch.zeros(num_rows, max_blocks, dtype=torch.int32, device=device)
        self.last_tokens = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self._told = np.zeros((num_rows, max_blocks), dtype=np.int32)

    def changes(
        self, row: Int32Array, block_tables: Int32Array
    ) -> tuple[npt.NDArray[np.int64], Int32Array]:
        """Return (place, block) of what the device does not know yet, and take it as told.

        row int32 [n]; block_tables int32 [n, blocks], from the first block on.
        """
        told = self._told[row, : block_tables.shape[1]]
        which, column = np.nonzero(block_tables != told)
        blocks = block_tables[which, column]
        self._told[row[which], column] = blocks
        return row[which].astype(np.int64) * self._told.shape[1] + column, blocks

    def apply(self, places: Tensor, blocks: Tensor) -> None:
        """Write what `changes` returned, on the device by now."""
        if len(places):
            self.block_tables.view(-1).index_copy_(0, places, blocks)
