"""The host memory that holds the KV blocks of swapped requests: which of its blocks are whose.

Owns: the free host blocks of one replica. Never knows: what is in a block, when it is copied, why a
request was swapped. A plan copies out before it copies in, so a block whose content is read by the
plan in the making may be written again only by a later one:

    free → allocate → held → release → returned → settle (a new plan is begun) → free
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostPoolStatistics:
    """Numbers of host blocks."""

    num_blocks: int
    num_held: int


class HostPool:
    """`num_blocks` blocks with ids 0 … num_blocks − 1; none is a pool that nothing fits into."""

    def __init__(self, num_blocks: int) -> None:
        """Start with all blocks free."""
        assert num_blocks >= 0, num_blocks
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._returned: list[int] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Blocks that hold content somebody will come back for."""
        return self.num_blocks - len(self._free) - len(self._returned)

    def allocate(self, count: int) -> list[int]:
        """Hold `count` ≤ num_free blocks and return their ids."""
        assert 0 <= count <= len(self._free), (count, len(self._free))
        return [self._free.pop() for _ in range(count)]

    def release(self, block_ids: list[int]) -> None:
        """Take blocks back; they are free again after `settle`."""
        self._returned += block_ids

    def settle(self) -> None:
        """Take in that the next plan is begun: no copy of it reads what was returned so far."""
        if self._returned:
            self._free += self._returned
            self._returned = []

    def statistics(self) -> HostPoolStatistics:
        """Return the numbers of blocks."""
        return HostPoolStatistics(self.num_blocks, self.num_held)

    def check_integrity(self, held: list[int]) -> None:
        """Assert that every block is free, returned, or once among the `held` ones."""
        assert sorted(self._free + self._returned + held) == list(range(self.num_blocks))
