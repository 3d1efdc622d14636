"""In which order blocks go whose content is cached and which nobody holds: the oldest first.

Owns: the order. Never knows: what a block is, or why it came or left. A first-in-first-out queue of
block ids in one array, all of whose operations are over many blocks at once:

    entries   … stale | head: entries, some of them stale | tail: unused
    stale     the place of the block is another one by now: it was taken out

At the end of the array what is live moves to its beginning; as it is twice as long as there are
blocks, that costs O(1) a block.
"""

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.int32]
NOWHERE = -1
MIN_ENTRIES = 64


class EvictionQueue:
    """Blocks 0 … num_blocks − 1, each in the queue once at the most."""

    def __init__(self, num_blocks: int) -> None:
        """Start with none."""
        self.num_blocks = 0  # in the queue
        self._entries = np.zeros(2 * num_blocks + MIN_ENTRIES, np.int32)
        self._places = np.full(num_blocks, NOWHERE, np.int64)
        self._head = 0
        self._tail = 0

    def push(self, block_ids: Blocks) -> None:
        """Append blocks that are not here, int32[n], the first to go first."""
        if self._tail + len(block_ids) > len(self._entries):
            self._move_to_front()
        end = self._tail + len(block_ids)
        self._entries[self._tail : end] = block_ids
        self._places[block_ids] = np.arange(self._tail, end)
        self._tail = end
        self.num_blocks += len(block_ids)

    def remove(self, block_ids: Blocks) -> None:
        """Take blocks out, int32[n]."""
        self._places[block_ids] = NOWHERE
        self.num_blocks -= len(block_ids)

    def pop(self, count: int) -> Blocks:
        """Take out the oldest `count` blocks, int32[count]."""
        assert count <= self.num_blocks, (count, self.num_blocks)
        length = count
        while True:
            places = self._live_places(self._head, self._head + length)
            if len(places) >= count:
                break
            length *= 2
        self._head = int(places[count - 1]) + 1 if count else self._head
        block_ids = self._entries[places[:count]]
        self.remove(block_ids)
        return block_ids

    def in_order(self) -> Blocks:
        """Return all blocks, the oldest first."""
        return self._entries[self._live_places(self._head, self._tail)]

    def _live_places(self, start: int, end: int) -> npt.NDArray[np.int64]:
        places = np.arange(start, min(end, self._tail))
        live: npt.NDArray[np.int64] = places[self._places[self._entries[places]] == places]
        return live

    def _move_to_front(self) -> None:
        block_ids = self.in_order()
        self._head, self._tail = 0, len(block_ids)
        self._entries[: self._tail] = block_ids
        self._places[block_ids] = np.arange(self._tail)
