"""The KV cache of one replica, in the terms of requests.

Owns: the block pool and prefix cache of a replica, and a request's way through them: quote → start
→ grow → commit → (fence →) release. Never knows: rows, plans, the order of requests. Only this
file changes `Request.block_ids`.

    tokens of a running request   [0, cached)  [cached, computed)  [computed, scheduled)
    can be found by others        yes          its full blocks     no, not acknowledged yet
"""

from dataclasses import dataclass

from core.kv_cache.block_pool import NO_BLOCK, BlockPool
from core.kv_cache.digest import block_digest, namespace_digest
from core.kv_cache.prefix_cache import PrefixCache
from core.request import Request
from core.sampling_params import NO_LOGPROBS

MAX_GROWTH_ROOM = 16  # free blocks left behind a new run for the request to grow into, at the most


@dataclass(frozen=True, slots=True)
class StartQuote:
    """What starting a request would take."""

    hits: list[int]  # blocks of its prefix that the cache holds
    num_new: int  # further blocks
    num_needed: int  # out of the available ones: new blocks, and hits nobody holds yet


class KVCacheManager:
    """Blocks of `block_size` tokens for the requests of one replica."""

    def __init__(
        self, num_blocks: int, block_size: int, secret: bytes, *, prefix_cache: bool
    ) -> None:
        """Start with an empty cache; without `prefix_cache` nothing is ever found or kept."""
        self.pool = BlockPool(num_blocks)
        self.prefix_cache = PrefixCache()
        self._block_size = block_size
        self._secret = secret
        self._caches = prefix_cache

    def blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that hold `num_tokens`."""
        return -(-num_tokens // self._block_size)

    def hit_tokens(self, request: Request) -> int:
        """Return how many tokens of `request` the cache holds; one is always left to compute."""
        return len(self._match(request)) * self._block_size

    def quote(self, request: Request, num_tokens: int) -> StartQuote:
        """Work out what a start with blocks for `num_tokens` takes; changes nothing."""
        hits = self._match(request)
        num_new = self.blocks_for(num_tokens) - len(hits)
        return StartQuote(hits, num_new, num_new + self.pool.count_evictable(hits))

    def start(self, request: Request, quote: StartQuote) -> int:
        """Give `request` the blocks of a quote just made; return the tokens found in the cache."""
        assert not request.block_ids, request.request_id
        self.pool.acquire(quote.hits, request.flow)
        left = request.prompt_len + request.max_tokens - request.num_tokens
        room = min(MAX_GROWTH_ROOM, self.blocks_for(left))
        after = quote.hits[-1] if quote.hits else NO_BLOCK
        request.block_ids = quote.hits + self._allocate(request, quote.num_new, after, room)
        return len(quote.hits) * self._block_size

    def grow(self, request: Request) -> int:
        """Append one block to a running request and return its id; one must be available."""
        block_id = self.pool.extend(request.block_ids[-1], request.flow)
        if block_id < 0:
            [block_id] = self._allocate(request, 1, NO_BLOCK, MAX_GROWTH_ROOM)
        request.block_ids.append(block_id)
        return block_id

    def commit(self, request: Request, first_block: int, end_block: int) -> None:
        """Let the computed blocks [first_block, end_block) of `request` be found by others."""
        if not self._caches:
            return
        self._extend_digests(request, end_block)
        for index in range(first_block, end_block):
            block_id = request.block_ids[index]
            if self.prefix_cache.insert(request.block_digests[index], block_id):
                self.pool.set_cached(block_id, True)

    def retract(self, request: Request, num_tokens: int) -> None:
        """Forget blocks of `request` with tokens from `num_tokens` on, unless others hold them."""
        for digest in request.block_digests[num_tokens // self._block_size :]:
            block_id = self.prefix_cache.find(digest)
            if block_id is None:
                continue
            if self.pool.references(block_id) <= (block_id in request.block_ids):
                self.prefix_cache.forget(block_id)
                self.pool.set_cached(block_id, False)

    def fence(self, request: Request) -> list[int]:
        """Take the blocks from `request` but keep them until `release_fenced`; return them."""
        block_ids, request.block_ids = request.block_ids, []
        self.pool.fence(block_ids)
        return block_ids

    def release(self, request: Request) -> None:
        """Take the blocks from `request`; no plan in flight names them."""
        block_ids, request.block_ids = request.block_ids, []
        self.pool.release(block_ids)

    def release_fenced(self, block_ids: list[int]) -> None:
        """Let go of blocks that `fence` returned."""
        self.pool.release(block_ids, fenced=True)

    def check_integrity(self) -> None:
        """Assert that pool and prefix cache are whole and agree."""
        self.pool.check_integrity()
        self.prefix_cache.check_integrity()
        cached = {b for b in range(self.pool.num_blocks) if self.pool.is_cached(b)}
        assert all(block_id in self.prefix_cache for block_id in cached)
        assert len(cached) == len(self.prefix_cache)

    def _match(self, request: Request) -> list[int]:
        """Find blocks of `request`; one that wants prompt log-probabilities computes them all."""
        if not self._caches:
            return []
        if request.sampling.num_prompt_logprobs != NO_LOGPROBS and not request.num_output_tokens:
            return []
        limit = (request.num_tokens - 1) // self._block_size
        self._extend_digests(request, limit)
        return self.prefix_cache.match(request.block_digests, limit)

    def _allocate(self, request: Request, count: int, after: int, room: int) -> list[int]:
        allocation = self.pool.allocate(count, request.flow, after=after, room=room)
        for block_id in allocation.evicted:
            self.prefix_cache.forget(block_id)
        return allocation.block_ids

    def _extend_digests(self, request: Request, num_blocks: int) -> None:
        """Name the first `num_blocks` blocks; those of the prompt usually came with the request."""
        digests, size = request.block_digests, self._block_size
        while len(digests) < num_blocks:
            parent = digests[-1] if digests else self._namespace(request)
            start = len(digests) * size
            digests.append(
                block_digest(self._secret, parent, request.token_ids[start : start + size])
            )

    def _namespace(self, request: Request) -> bytes:
        return namespace_digest(self._secret, request.tenant, request.adapter)
