"""Which block holds the content with a given digest.

Owns: the two-way map between digests and blocks, at most one entry a block. Never knows: how
digests are made, who holds a block, when it is evicted. Only blocks whose every token was computed
and acknowledged are entered here.
"""

from collections.abc import Iterable, Sequence


class PrefixCache:
    """A map digest → block and its inverse; bounded by the number of blocks."""

    def __init__(self) -> None:
        """Start empty."""
        self._blocks: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}

    def __len__(self) -> int:
        """Return the number of blocks that can be found."""
        return len(self._blocks)

    def match(self, digests: Sequence[bytes], limit: int) -> list[int]:
        """Return the blocks of the longest known prefix of `digests`, at most `limit`."""
        found: list[int] = []
        for digest in digests[:limit]:
            block_id = self._blocks.get(digest)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def find(self, digest: bytes) -> int | None:
        """Return the block with this content."""
        return self._blocks.get(digest)

    def insert(self, digests: Sequence[bytes], block_ids: Sequence[int]) -> list[int]:
        """Enter blocks and return them, but for those whose content another block already has."""
        blocks, entered = self._blocks, []
        for digest, block_id in zip(digests, block_ids, strict=True):
            if digest not in blocks:
                assert block_id not in self._digests, block_id
                blocks[digest] = block_id
                self._digests[block_id] = digest
                entered.append(block_id)
        return entered

    def forget(self, block_ids: Iterable[int]) -> None:
        """Drop the entries of `block_ids`, which all have one."""
        blocks, digests = self._blocks, self._digests
        for block_id in block_ids:
            del blocks[digests.pop(block_id)]

    def __contains__(self, block_id: int) -> bool:
        """Tell whether the content of `block_id` can be found."""
        return block_id in self._digests

    def check_integrity(self) -> None:
        """Assert that both maps say the same."""
        assert len(self._blocks) == len(self._digests)
        assert all(self._digests[block] == digest for digest, block in self._blocks.items())
