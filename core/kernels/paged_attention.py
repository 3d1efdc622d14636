"""Rotary embedding, KV write and causal attention over a paged cache, for mixed prefill and decode.

Owns: the cache layout, the description of a batch, the plain-torch reference and the caller of
`paged_attention.cpp`. Never knows: requests, or who gave out the blocks.

Cache of a layer, [blocks, kv heads, 2 * block_size * head_dim] elements: of each block and head
first K as [head_dim/pack, block_size, pack], then V as [block_size/pack, head_dim, pack], where
`pack` is the number of elements in 32 bits (bfloat16: 2, float32: 1). See the C++ file for why.
"""

import ctypes
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.kernels.prefetch import Upcoming

Int32Array = npt.NDArray[np.int32]

MAX_TILE_ROWS = 12  # (token, query head) rows of one unit of work of the C++ kernel
MAX_NATIVE_HEAD_DIM = 256
MAX_BLOCKS_FETCHED = 2048


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What is the same in every layer and step."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_size(self) -> int:
        """Width of a row of queries, keys and values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def block_elements(self) -> int:
        """Elements of one block of one layer."""
        return self.num_kv_heads * 2 * self.block_size * self.head_dim

    def cache_shape(self, num_blocks: int) -> tuple[int, int, int]:
        """Shape of a layer's cache."""
        return num_blocks, self.num_kv_heads, 2 * self.block_size * self.head_dim


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """How scores are made of queries and keys, the same for every token of a layer.

    `scale` multiplies the products; None: 1/sqrt(head_dim). `softcap` c > 0 bends a score s to
    c·tanh(s/c) (Gemma 2, section 2). A token sees the last `window` keys, its own included; 0: all.
    """

    scale: float | None = None
    softcap: float = 0.0
    window: int = 0

    def scale_for(self, head_dim: int) -> float:
        """Return the factor for heads of this width."""
        return 1 / math.sqrt(head_dim) if self.scale is None else self.scale


PLAIN_RULE = AttentionRule()


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Which sequences a step extends. Tokens of a sequence are neighbours, sequences are in order.

    int32 arrays: `first_token` [n] index of the sequence's first token in the step,
    `num_tokens` [n] > 0, `first_position` [n], `block_tables` [n, blocks] C-contiguous, covering
    every position up to the last new one.
    """

    first_token: Int32Array
    num_tokens: Int32Array
    first_position: Int32Array
    block_tables: Int32Array

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole step."""
        return int(self.num_tokens.sum())

    def token_sequence(self) -> Int32Array:
        """Sequence of each token, int32 [tokens]."""
        return np.repeat(np.arange(len(self.num_tokens), dtype=np.int32), self.num_tokens)

    def positions(self) -> Int32Array:
        """Position of each token in its sequence, int32 [tokens]."""
        shift = np.repeat(self.first_position - self.first_token, self.num_tokens)
        return shift + np.arange(self.total_tokens, dtype=np.int32)


class PagedAttention(Protocol):
    """Attention of one step, layer after layer."""

    def begin(self, batch: AttentionBatch) -> None:
        """Prepare what all layers of a step share."""
        ...

    def expect(self, cache: Tensor) -> None:
        """Be told that `cache` is the next one to be called with, so that it can be fetched."""
        ...

    def __call__(self, qkv: Tensor, cache: Tensor) -> Tensor:
        """Write the step's keys and values into the layer's `cache` and return the attention.

        qkv [tokens, qkv_size] before rotation; result [tokens, num_heads * head_dim].
        """
        ...


def split_cache(cache: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor]:
    """Return (keys, values) views of a layer's cache: [blocks, kv heads, block_size, head_dim/…].

    Keys [blocks, kv heads, block_size, head_dim/pack, pack], values
    [blocks, kv heads, block_size/pack, pack, head_dim].
    """
    pack = 4 // cache.itemsize
    half = shape.block_size * shape.head_dim
    lead = cache.shape[:2]
    keys = cache[..., :half].view(*lead, shape.head_dim // pack, shape.block_size, pack)
    values = cache[..., half:].view(*lead, shape.block_size // pack, shape.head_dim, pack)
    return keys.permute(0, 1, 3, 2, 4), values.permute(0, 1, 2, 4, 3)


def rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate heads by position: x [tokens, heads, head_dim] float32, cos_sin [tokens, head_dim].

    Half-split rule: dimension i pairs with i + head_dim/2.
    """
    cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=-1)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class TorchPagedAttention:
    """The reference: one sequence after the other, scores and softmax in float32."""

    def __init__(
        self, shape: AttentionShape, cos_sin: Tensor, rule: AttentionRule = PLAIN_RULE
    ) -> None:
        self._shape = shape
        self._rule = rule
        self._cos_sin = cos_sin
        self._batch: AttentionBatch | None = None

    def begin(self, batch: AttentionBatch) -> None:
        """Prepare what all layers of a step share."""
        self._batch = batch

    def expect(self, cache: Tensor) -> None:
        """Nothing is fetched ahead."""

    def __call__(self, qkv: Tensor, cache: Tensor) -> Tensor:
        """Write and attend."""
        batch = self._batch
        assert batch is not None
        shape = self._shape
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        queries, keys, values = torch.split(
            heads, [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1
        )
        cos_sin = self._cos_sin[torch.from_numpy(batch.positions()).long()]
        queries = rotate(queries.float(), cos_sin).to(qkv.dtype)
        keys = rotate(keys.float(), cos_sin).to(qkv.dtype)
        self._write(batch, cache, keys, values)
        out = torch.empty_like(queries)
        for index in range(len(batch.num_tokens)):
            start = int(batch.first_token[index])
            end = start + int(batch.num_tokens[index])
            out[start:end] = self._attend(batch, index, cache, queries[start:end])
        return out.view(len(qkv), -1)

    def _write(self, batch: AttentionBatch, cache: Tensor, keys: Tensor, values: Tensor) -> None:
        size, pack = self._shape.block_size, 4 // cache.itemsize
        positions = batch.positions()
        blocks = batch.block_tables[batch.token_sequence(), positions // size]
        block, slot = torch.from_numpy(blocks).long(), torch.from_numpy(positions % size).long()
        cache_keys, cache_values = split_cache(cache, self._shape)
        cache_keys[block, :, slot] = keys.view(*keys.shape[:2], -1, pack)
        cache_values[block, :, slot // pack, slot % pack] = values

    def _attend(self, batch: AttentionBatch, index: int, cache: Tensor, queries: Tensor) -> Tensor:
        """Return [tokens, heads, head_dim] of one sequence."""
        shape = self._shape
        first = int(batch.first_position[index])
        context = first + len(queries)
        blocks = batch.block_tables[index, : -(-context // shape.block_size)]
        cache_keys, cache_values = split_cache(cache[torch.from_numpy(blocks).long()], shape)
        keys = self._in_order(cache_keys.flatten(3), context)
        values = self._in_order(cache_values.flatten(2, 3), context)
        wide = queries.float().transpose(0, 1)
        scores = wide @ keys.transpose(1, 2) * self._rule.scale_for(shape.head_dim)
        if self._rule.softcap:
            scores = (scores / self._rule.softcap).tanh() * self._rule.softcap
        weights = scores.masked_fill(self._unseen(first, context), -math.inf).softmax(dim=-1)
        return (weights @ values).transpose(0, 1).to(queries.dtype)

    def _unseen(self, first: int, context: int) -> Tensor:
        """Return which keys the tokens from `first` on do not see: bool [tokens, context]."""
        age = torch.arange(first, context).unsqueeze(1) - torch.arange(context)
        window = self._rule.window or context
        return (age < 0) | (age >= window)

    def _in_order(self, blocks: Tensor, context: int) -> Tensor:
        """[blocks, kv heads, block_size, head_dim] -> float32 [heads, context, head_dim]."""
        merged = blocks.transpose(0, 1).flatten(1, 2)[:, :context].float()
        return merged.repeat_interleave(self._shape.group, dim=0)


class _Arguments(ctypes.Structure):
    """`headrace::Attention` of `paged_attention.cpp`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "cache", "out", "cos_sin")),
        *((name, ctypes.c_void_p) for name in ("token_sequence", "first_token", "first_position")),
        ("block_tables", ctypes.c_void_p),
        *((f"unit_{name}", ctypes.c_void_p) for name in ("sequence", "head", "first_row")),
        ("unit_num_rows", ctypes.c_void_p),
        ("block_table_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("num_tokens", "num_units", "num_heads")),
        *((name, ctypes.c_int32) for name in ("num_kv_heads", "head_dim", "block_size", "window")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
    )


class NativePagedAttention:
    """The same by `paged_attention.cpp`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        shape: AttentionShape,
        cos_sin: Tensor,
        dtype: torch.dtype,
        rule: AttentionRule = PLAIN_RULE,
        upcoming: Upcoming | None = None,
    ) -> None:
        """What it reads next it says in `upcoming`, for products to fetch."""
        suffix = "bfloat16" if dtype == torch.bfloat16 else "float32"
        self._function = getattr(library, f"headrace_paged_attention_{suffix}")
        self._shape = shape
        self._window = rule.window
        self._cos_sin = cos_sin
        self._upcoming = Upcoming() if upcoming is None else upcoming
        self._blocks_read = np.empty(0, dtype=np.int32)
        self._arrays: tuple[Int32Array, ...] = ()  # keeps the addresses of the step alive
        self._arguments = _Arguments(
            cos_sin=cos_sin.data_ptr(),
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=shape.block_size,
            window=rule.window,
            scale=rule.scale_for(shape.head_dim),
            softcap=rule.softcap,
        )
        self._address = ctypes.addressof(self._arguments)

    @staticmethod
    def supports(head_dim: int) -> bool:
        """Return whether heads of this width fill whole vectors."""
        return head_dim % 16 == 0 and head_dim <= MAX_NATIVE_HEAD_DIM

    def begin(self, batch: AttentionBatch) -> None:
        """Cut the step into units of work and hand their addresses over."""
        names = ("token_sequence", "first_token", "first_position", "block_tables")
        steps = (batch.token_sequence(), batch.first_token, batch.first_position)
        units = _work_units(batch.num_tokens * self._shape.group, self._shape.num_kv_heads)
        self._arrays = (*steps, batch.block_tables, *units)
        arguments = self._arguments
        for name, array in zip((*names, *_UNIT_NAMES), self._arrays, strict=True):
            assert array.dtype == np.int32, name
            assert array.flags.c_contiguous, name
            setattr(arguments, name, array.ctypes.data)
        arguments.block_table_stride = batch.block_tables.shape[1]
        arguments.num_tokens = len(steps[0])
        arguments.num_units = len(units[0])
        self._blocks_read = _blocks_read(batch, self._shape.block_size, self._window)

    def expect(self, cache: Tensor) -> None:
        """Let products fetch what this step reads of `cache`."""
        self._upcoming.announce(cache, self._blocks_read)

    def __call__(self, qkv: Tensor, cache: Tensor) -> Tensor:
        """Write and attend."""
        assert qkv.is_contiguous(), "rows of qkv must follow each other"
        assert cache.is_contiguous(), "blocks must follow each other"
        shape = self._shape
        out = torch.empty(len(qkv), shape.num_heads * shape.head_dim, dtype=qkv.dtype)
        self._upcoming.withdraw()
        arguments = self._arguments
        arguments.qkv = qkv.data_ptr()
        arguments.cache = cache.data_ptr()
        arguments.out = out.data_ptr()
        self._function(self._address)
        return out


_UNIT_NAMES = ("unit_sequence", "unit_head", "unit_first_row", "unit_num_rows")


def _work_units(num_rows: Int32Array, num_kv_heads: int) -> tuple[Int32Array, ...]:
    """Return (sequence, KV head, first row, rows) of each unit, for sequences of `num_rows` rows.

    Units of a sequence and head follow each other: they read the same keys and values.
    """
    tiles = -(-num_rows // MAX_TILE_ROWS)
    counts = tiles * num_kv_heads
    sequence = np.repeat(np.arange(len(num_rows), dtype=np.int32), counts)
    place = np.arange(len(sequence)) - (np.cumsum(counts) - counts)[sequence]
    head, tile = np.divmod(place, tiles[sequence])
    first_row = tile * MAX_TILE_ROWS
    rows = np.minimum(MAX_TILE_ROWS, num_rows[sequence] - first_row)
    return sequence, head.astype(np.int32), first_row.astype(np.int32), rows.astype(np.int32)


def _blocks_read(batch: AttentionBatch, block_size: int, window: int) -> Int32Array:
    """Return the blocks that the step's tokens see, each once, sequence after sequence.

    Of very many only the first: products never fetch as much.
    """
    ends = batch.first_position + batch.num_tokens
    first = np.maximum(batch.first_position - (window - 1), 0) if window else np.zeros_like(ends)
    column = np.arange(batch.block_tables.shape[1])
    is_read = (column >= (first // block_size)[:, None]) & (column * block_size < ends[:, None])
    blocks = batch.block_tables[is_read][:MAX_BLOCKS_FETCHED]
    places = np.sort(np.unique(blocks, return_index=True)[1])
    return np.ascontiguousarray(blocks[places])
