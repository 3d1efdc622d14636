"""The KV cache of one replica, in the terms of requests.

Owns: the block pool and prefix cache of a replica, and a request's way through them: quote → start
→ grow → commit → (fence →) release. Never knows: rows, plans, the order of requests. Only this
file changes `Request.block_ids`.

    tokens of a running request   [0, cached)  [cached, computed)  [computed, scheduled)
    can be found by others        yes          its full blocks     no, not acknowledged yet

A request may leave by `swap_out`: the blocks from the last one that it shares to the last computed
one are copied to the host pool. Shared blocks are not: at its next start they are found by their
digests, like any prefix. If one of them is gone by then, the copies are dropped and everything
behind the prefix that was found is computed again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from core.kv_cache.block_pool import NO_BLOCK, BlockPool
from core.kv_cache.digest import chain_digests, namespace_digest
from core.kv_cache.host_pool import HostPool
from core.kv_cache.prefix_cache import PrefixCache
from core.request import Request
from core.sampling_params import NO_LOGPROBS

MAX_GROWTH_ROOM = 16  # free blocks left behind a new run for the request to grow into, at the most


class StartQuote(NamedTuple):
    """What starting a request would take."""

    hits: list[int]  # blocks of its prefix that the cache holds
    num_new: int  # further blocks
    num_needed: int  # out of the available ones: new blocks, and hits nobody holds yet
    num_known: int = 0  # tokens that need no computing: those of the hits and of the copies
    copies: Sequence[int] = ()  # host blocks that go behind the hits


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The content of a block that moves between the pool and the host pool."""

    block_id: int
    host_block: int


@dataclass(frozen=True, slots=True)
class Swapped:
    """Where the computed tokens of a request that was swapped out are."""

    first_block: int  # the blocks before it were shared
    host_blocks: list[int]
    num_tokens: int  # computed, the shared ones included


class KVCacheManager:
    """Blocks of `block_size` tokens for the requests of one replica."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        secret: bytes,
        *,
        prefix_cache: bool,
        num_host_blocks: int = 0,
    ) -> None:
        """Start with an empty cache; without `prefix_cache` nothing is ever found or kept."""
        self.pool = BlockPool(num_blocks)
        self.host = HostPool(num_host_blocks)
        self.prefix_cache = PrefixCache()
        self._swapped: dict[Request, Swapped] = {}
        self._block_size = block_size
        self._secret = secret
        self._caches = prefix_cache

    def blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that hold `num_tokens`."""
        return -(-num_tokens // self._block_size)

    def hit_tokens(self, request: Request) -> int:
        """Return how many tokens of `request` the cache holds, or the host if it was swapped; one
        is always left to compute.
        """
        return self._known_tokens(request, len(self._match(request)))

    def quote(self, request: Request, num_tokens: int) -> StartQuote:
        """Work out what a start with blocks for `num_tokens` takes; changes nothing."""
        hits = self._match(request)
        num_new = self.blocks_for(num_tokens) - len(hits)
        return StartQuote(
            hits,
            num_new,
            num_new + self.pool.count_evictable(hits),
            self._known_tokens(request, len(hits)),
            self._copies(request, len(hits)),
        )

    def start(self, request: Request, quote: StartQuote) -> list[BlockCopy]:
        """Give `request` the blocks of a quote just made; return the copies that fill them."""
        assert not request.block_ids, request.request_id
        self.forget_swapped(request)
        self.pool.acquire(quote.hits, request.flow)
        left = request.max_length - request.num_tokens
        room = min(MAX_GROWTH_ROOM, self.blocks_for(left))
        after = quote.hits[-1] if quote.hits else NO_BLOCK
        request.block_ids = quote.hits + self._allocate(request, quote.num_new, after, room)
        first = len(quote.hits)
        filled = request.block_ids[first : first + len(quote.copies)]
        return list(map(BlockCopy, filled, quote.copies))

    def swap_out(self, request: Request, num_tokens: int, max_copies: int) -> list[BlockCopy]:
        """Reserve host blocks for what `request` has computed, `num_tokens`, and shares with
        nobody; return the copies to make before its blocks are written again. [] = there is nothing
        to copy, or no room for all of it.
        """
        block_ids = request.block_ids[: self.blocks_for(num_tokens)]
        shared = [self.pool.references(block_id) > 1 for block_id in block_ids]
        first = 1 + max((i for i, each in enumerate(shared) if each), default=-1)
        private = block_ids[first:]
        if not 0 < len(private) <= min(max_copies, self.host.num_free):
            return []
        host_blocks = self.host.allocate(len(private))
        self._swapped[request] = Swapped(first, host_blocks, num_tokens)
        return list(map(BlockCopy, private, host_blocks))

    def forget_swapped(self, request: Request) -> None:
        """Let go of the host blocks of `request`, if it has any."""
        swapped = self._swapped.pop(request, None)
        if swapped is not None:
            self.host.release(swapped.host_blocks)

    def swapped(self) -> list[Request]:
        """Return the requests whose blocks wait in host memory."""
        return list(self._swapped)

    def extend(self, request: Request, count: int) -> list[int]:
        """Append `count` available blocks to a running request and return their ids."""
        block_ids = self._allocate(request, count, request.block_ids[-1], 0)
        request.block_ids += block_ids
        return block_ids

    def give_back(self, request: Request, count: int) -> None:
        """Take the last `count` blocks from a running request; no plan in flight names them."""
        block_ids = request.block_ids[-count:]
        del request.block_ids[-count:]
        self.pool.release(block_ids)

    def grow(self, requests: Sequence[Request], flows: Sequence[int]) -> list[int]:
        """Append a block to each of these running requests, of such flows, and return them; so many
        must be available.
        """
        held = [request.block_ids for request in requests]
        last = [block_ids[-1] for block_ids in held]
        allocation = self.pool.grow(last, flows, MAX_GROWTH_ROOM)
        self.prefix_cache.forget(allocation.evicted)
        for block_ids, block_id in zip(held, allocation.block_ids, strict=True):
            block_ids.append(block_id)
        return allocation.block_ids

    def commit(self, computed: Iterable[tuple[Request, int, int]]) -> None:
        """Let the computed blocks [first, end) of requests be found by others."""
        if not self._caches:
            return
        digests: list[bytes] = []
        block_ids: list[int] = []
        for request, first, end in computed:
            if len(request.block_digests) < end:
                self._extend_digests(request, end)
            digests += request.block_digests[first:end]
            block_ids += request.block_ids[first:end]
        self.pool.set_cached(self.prefix_cache.insert(digests, block_ids))

    def retract(self, request: Request, num_tokens: int) -> None:
        """Forget blocks of `request` with tokens from `num_tokens` on, unless others hold them."""
        for digest in request.block_digests[num_tokens // self._block_size :]:
            block_id = self.prefix_cache.find(digest)
            if block_id is None:
                continue
            if self.pool.references(block_id) <= (block_id in request.block_ids):
                self.prefix_cache.forget([block_id])
                self.pool.set_uncached([block_id])

    def drop_cached(self, flows: range | None = None) -> None:
        """Forget cached blocks, of some `flows` or all; those in use stay with their requests."""
        block_ids = self.pool.cached_blocks(flows)
        self.prefix_cache.forget(block_ids)
        self.pool.set_uncached(block_ids)

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
        self.host.check_integrity([b for each in self._swapped.values() for b in each.host_blocks])
        cached = {b for b in range(self.pool.num_blocks) if self.pool.is_cached(b)}
        assert all(block_id in self.prefix_cache for block_id in cached)
        assert len(cached) == len(self.prefix_cache)

    def _known_tokens(self, request: Request, num_hits: int) -> int:
        swapped = self._swapped.get(request)
        if swapped is None or num_hits < swapped.first_block:
            return num_hits * self._block_size
        return max(num_hits * self._block_size, swapped.num_tokens)

    def _copies(self, request: Request, num_hits: int) -> Sequence[int]:
        """Return the host blocks that continue a prefix of `num_hits` blocks."""
        swapped = self._swapped.get(request)
        if swapped is None or num_hits < swapped.first_block:
            return ()
        return swapped.host_blocks[num_hits - swapped.first_block :]

    def _match(self, request: Request) -> list[int]:
        """Find blocks of `request`; one that wants prompt log-probabilities computes them all."""
        if not self._caches:
            return []
        if request.sampling.num_prompt_logprobs != NO_LOGPROBS and not request.num_output_tokens:
            return []
        limit = (request.num_tokens - 1) // self._block_size
        if len(request.block_digests) < limit:
            self._extend_digests(request, limit)
        return self.prefix_cache.match(request.block_digests, limit)

    def _allocate(self, request: Request, count: int, after: int, room: int) -> list[int]:
        allocation = self.pool.allocate(count, request.flow, after=after, room=room)
        self.prefix_cache.forget(allocation.evicted)
        return allocation.block_ids

    def _extend_digests(self, request: Request, num_blocks: int) -> None:
        """Name the first `num_blocks` blocks; those of the prompt usually came with the request."""
        digests, size = request.block_digests, self._block_size
        parent = digests[-1] if digests else self._namespace(request)
        ids = request.token_ids[len(digests) * size : num_blocks * size]
        digests += chain_digests(self._secret, parent, ids, size)

    def _namespace(self, request: Request) -> bytes:
        return namespace_digest(self._secret, request.tenant, request.adapter)
