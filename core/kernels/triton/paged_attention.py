"""Causal attention over a paged cache for mixed prefill and decode, with split keys for decode.

Owns: the attention of a tile of query rows over a range of keys, and the caller of all that belongs
to it. Never knows: requests, or who gave out the blocks. The cache is laid out as in
`rope_kv_write`, units of work are cut by `work_units`, their partial results joined by
`attention_merge`. The reference is `core.kernels.paged_attention.TorchPagedAttention`.

A program takes one unit and one KV head. It reads its rows of queries once, then a tile of keys
and values at a time, each found through the block table; scores, their running maximum and sum
(online softmax: Milakov & Gimelshein, 2018; tiles: Dao, FlashAttention-2, 2023) are float32, the
weights are rounded to the model's dtype for the second product. Keys outside the context or the
window are not read. Exponentials are powers of two: log2(e) is part of the scale.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from core.kernels.paged_attention import (
    PLAIN_RULE,
    AttentionBatch,
    AttentionRule,
    AttentionShape,
)
from core.kernels.triton.attention_merge import merge_partials
from core.kernels.triton.rope_kv_write import rope_kv_write
from core.kernels.triton.work_units import NARROW_ROWS, SPLIT_KEYS, WorkUnits, cut

LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Tile:
    """How one program is laid out: `rows` of queries, `keys` at a time."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def float32_tiles(head_dim: int) -> tuple[Tile, Tile]:
    """Return (narrow, wide) for products in full float32, which no matrix instruction has.

    They are for comparisons, not for speed: the largest whose registers do not spill.
    """
    narrow = Tile(NARROW_ROWS, 32, num_warps=8, num_stages=1)
    return narrow, narrow if head_dim > 128 else Tile(32, 32, num_warps=8, num_stages=1)


def narrow_tile(head_dim: int) -> Tile:
    """Return the tile of decodes."""
    return Tile(NARROW_ROWS, 64 if head_dim <= 128 else 32, num_warps=4, num_stages=3)


def wide_tile(head_dim: int, capability: int) -> Tile:
    """Return the tile of prompts on a device of this compute capability (80, 90, …).

    The sizes are the largest whose registers do not spill; before 90 operands of products lie in
    registers, so heads above 64 have room for half as many keys; from 100 on the widest heads have
    none for a second stage.
    """
    if head_dim > 128:
        return Tile(64, 32, num_warps=8, num_stages=1 if capability >= 100 else 2)
    return Tile(128, 32 if capability < 90 and head_dim > 64 else 64, num_warps=8, num_stages=2)


@triton.jit
def attention_kernel(
    queries,  # [tokens, heads, head_dim], rotated; rows query_stride apart
    cache,  # [blocks, kv heads, 2, block_size, head_dim]
    out,  # [tokens, heads, head_dim], contiguous
    partial_out,  # float32 [partials, kv heads, TILE_ROWS, head_dim]
    partial_sum,  # float32 [partials, kv heads, TILE_ROWS], log2 of the sum of weights
    unit_sequence,  # int32 [units], as the next four; negative for padding
    unit_first_row,
    unit_first_key,
    unit_end_key,
    unit_partial,
    first_token,  # int32 [sequences], as the next two
    num_tokens,
    first_position,
    block_tables,  # int32 [sequences, table_stride]
    query_stride,
    table_stride,
    factor,  # of a product of query and key; see `TritonPagedAttention`
    cap,
    window,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    i_unit = tl.program_id(0)
    i_head = tl.program_id(1)
    sequence = tl.load(unit_sequence + i_unit)
    if sequence < 0:
        return
    first_row = tl.load(unit_first_row + i_unit)
    count = tl.load(num_tokens + sequence)
    start = tl.load(first_position + sequence)
    o_rows = first_row + tl.arange(0, TILE_ROWS)
    o_tokens = o_rows // GROUP
    o_heads = i_head * GROUP + o_rows % GROUP
    o_dims = tl.arange(0, PADDED_DIM)
    m_rows = o_tokens < count
    m_dims = o_dims < HEAD_DIM
    m_tile = m_rows[:, None] & m_dims[None, :]
    step_token = (tl.load(first_token + sequence) + o_tokens).to(tl.int64)
    p_queries = queries + (step_token * query_stride + o_heads * HEAD_DIM)[:, None]
    b_queries = tl.load(p_queries + o_dims[None, :], mask=m_tile, other=0.0)

    # Positions that some row of the tile sees.
    last_token = tl.minimum(count - 1, (first_row + TILE_ROWS - 1) // GROUP)
    end_key = tl.minimum(tl.load(unit_end_key + i_unit), start + last_token + 1)
    first_key = tl.load(unit_first_key + i_unit)
    if HAS_WINDOW:
        lowest = tl.maximum(start + first_row // GROUP - window + 1, 0)
        first_key = tl.maximum(first_key, lowest // TILE_KEYS * TILE_KEYS)

    o_positions = start + o_tokens
    p_table = block_tables + sequence.to(tl.int64) * table_stride
    best = tl.full([TILE_ROWS], -float("inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    b_out = tl.zeros([TILE_ROWS, PADDED_DIM], tl.float32)
    for key in range(first_key, end_key, TILE_KEYS):
        o_keys = key + tl.arange(0, TILE_KEYS)
        m_keys = o_keys < end_key
        if HAS_WINDOW:
            m_keys = m_keys & (o_keys >= lowest)
        block = tl.load(p_table + o_keys // BLOCK_SIZE, mask=m_keys, other=0).to(tl.int64)
        slot = (block * NUM_KV_HEADS + i_head) * (2 * BLOCK_SIZE) + o_keys % BLOCK_SIZE
        p_keys = cache + slot * HEAD_DIM
        b_keys = tl.load(  # [PADDED_DIM, TILE_KEYS]
            p_keys[None, :] + o_dims[:, None], mask=m_keys[None, :] & m_dims[:, None], other=0.0
        )
        scores = tl.dot(b_queries, b_keys, input_precision="ieee") * factor
        if HAS_CAP:  # cap * tanh(x), where scores are 2 log2(e) x
            scores = cap * (1.0 - 2.0 / (1.0 + tl.exp2(scores)))
        age = o_positions[:, None] - o_keys[None, :]
        seen = (age >= 0) & m_keys[None, :]
        if HAS_WINDOW:
            seen = seen & (age < window)
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        anchor = tl.where(higher == -float("inf"), 0.0, higher)  # rows that have seen nothing yet
        weights = tl.exp2(scores - anchor[:, None])
        shrink = tl.exp2(best - anchor)
        total = total * shrink + tl.sum(weights, 1)
        b_values = tl.load(  # [TILE_KEYS, PADDED_DIM]
            p_keys[:, None] + BLOCK_SIZE * HEAD_DIM + o_dims[None, :],
            mask=m_keys[:, None] & m_dims[None, :],
            other=0.0,
        )
        b_out = tl.dot(  # float32, if that is the model's dtype, is not cut to 10 bits
            weights.to(b_values.dtype), b_values, b_out * shrink[:, None], input_precision="ieee"
        )
        best = higher

    b_out = b_out / tl.where(total == 0.0, 1.0, total)[:, None]
    partial = tl.load(unit_partial + i_unit)
    if partial < 0:
        p_out = out + (step_token * NUM_KV_HEADS * GROUP + o_heads)[:, None] * HEAD_DIM
        tl.store(p_out + o_dims[None, :], b_out.to(out.dtype.element_ty), mask=m_tile)
    else:
        place = partial.to(tl.int64) * NUM_KV_HEADS + i_head
        o_places = place * TILE_ROWS + tl.arange(0, TILE_ROWS)
        p_partial = partial_out + o_places[:, None] * HEAD_DIM
        tl.store(p_partial + o_dims[None, :], b_out, mask=m_tile)
        tl.store(partial_sum + o_places, best + tl.log2(total), mask=m_rows)


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """What the layers of a step share, on the device; int32 tensors as in `AttentionBatch`.

    There may be more tokens and sequences than the step has; `token_sequence` of padding is
    negative, and no unit names its sequence.
    """

    token_sequence: Tensor
    positions: Tensor
    first_token: Tensor
    num_tokens: Tensor
    first_position: Tensor
    block_tables: Tensor


@dataclass(frozen=True, slots=True)
class AttentionUnits:
    """`WorkUnits` on the device: their arrays, and room for so many partial results."""

    tile_rows: int
    num_partials: int
    arrays: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Launch:
    """Units in tiles of one size and the memory of their partial results."""

    tile: Tile
    units: tuple[Tensor, ...]
    merges: tuple[Tensor, ...]
    partial_out: Tensor
    partial_sum: Tensor


class TritonPagedAttention:
    """See `core.kernels.paged_attention.PagedAttention`; qkv's queries are rotated in place.

    `begin` is `cut`, a copy to the device, and `use`. Who has the copy made otherwise (all arrays
    of a step at once, or into memory that a graph reads) calls the parts.
    """

    def __init__(
        self,
        shape: AttentionShape,
        cos_sin: Tensor,
        rule: AttentionRule = PLAIN_RULE,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """`cos_sin` float32 [positions, head_dim], on the device that computes."""
        wide = wide_tile(shape.head_dim, capability_of(cos_sin.device))
        self._tiles = narrow_tile(shape.head_dim), wide
        if dtype == torch.float32:
            self._tiles = float32_tiles(shape.head_dim)
        assert all(SPLIT_KEYS % tile.keys == 0 for tile in self._tiles), "a tile in two parts"
        self._shape, self._cos_sin, self._window = shape, cos_sin, rule.window
        self._factor, self._cap = score_factors(rule, shape.head_dim)
        self._scratch = cos_sin.new_empty(0)
        self._outgrown: list[Tensor] = []  # graphs go on writing there
        self._step: AttentionStep | None = None
        self._launches: list[_Launch] = []

    def begin(self, batch: AttentionBatch) -> None:
        """Prepare what all layers of a step share: indices and units, copied to the device."""
        step = AttentionStep(
            *map(
                self._on_device,
                (
                    batch.token_sequence(), batch.positions(), batch.first_token,
                    batch.num_tokens, batch.first_position, batch.block_tables,
                ),
            )
        )  # fmt: skip
        self.use(
            step,
            [
                AttentionUnits(
                    units.tile_rows, units.num_partials, tuple(map(self._on_device, units.arrays))
                )
                for units in self.cut(batch)
            ],
        )

    def expect(self, cache: Tensor) -> None:
        """Nothing is fetched ahead."""

    def cut(self, batch: AttentionBatch) -> list[WorkUnits]:
        """Return the units of a step, of each size of tile that it has."""
        by_width = cut(batch, self._shape, self._window, self._tiles[1].rows)
        return [units for units in by_width if len(units.sequence)]

    def use(self, step: AttentionStep, units: Sequence[AttentionUnits]) -> None:
        """Take what `cut` has found for a step, on the device."""
        self._step = step
        self._launches = [self._launch(each) for each in units]

    def __call__(self, qkv: Tensor, cache: Tensor) -> Tensor:
        """Write the step's keys and values and return the attention.

        qkv may have more rows than the step has tokens; what the others hold is not read, and
        their rows of the result are not written.
        """
        step, shape = self._step, self._shape
        assert step is not None, "begin comes first"
        num_tokens = len(step.positions)
        rope_kv_write(
            qkv[:num_tokens], cache, self._cos_sin, step.token_sequence, step.positions,
            step.block_tables, shape,
        )  # fmt: skip
        out = qkv.new_empty(len(qkv), shape.num_heads * shape.head_dim)
        for launch in self._launches:
            self._attend(launch, step, qkv, cache, out)
            merge_partials(
                launch.partial_out, launch.partial_sum, out, launch.merges,
                step.first_token, step.num_tokens, shape,
            )  # fmt: skip
        return out

    def _on_device(self, array: npt.NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._cos_sin.device)

    def _launch(self, units: AttentionUnits) -> _Launch:
        """Return the units with their part of the scratch, which narrow and wide ones share:

        they are launched one after the other.
        """
        shape = self._shape
        tile = next(tile for tile in self._tiles if tile.rows == units.tile_rows)
        num_rows = units.num_partials * shape.num_kv_heads * tile.rows
        if self._scratch.numel() < num_rows * (shape.head_dim + 1):
            self._outgrown.append(self._scratch)
            self._scratch = self._cos_sin.new_empty(2 * num_rows * (shape.head_dim + 1))
        rows = units.num_partials, shape.num_kv_heads, tile.rows
        partial_out = self._scratch[: num_rows * shape.head_dim].view(*rows, shape.head_dim)
        partial_sum = self._scratch[num_rows * shape.head_dim :][:num_rows].view(*rows)
        return _Launch(tile, units.arrays[:5], units.arrays[5:], partial_out, partial_sum)

    def _attend(
        self, launch: _Launch, step: AttentionStep, qkv: Tensor, cache: Tensor, out: Tensor
    ) -> None:
        shape, tile = self._shape, launch.tile
        attention_kernel[(len(launch.units[0]), shape.num_kv_heads)](
            qkv, cache, out, launch.partial_out, launch.partial_sum, *launch.units,
            step.first_token, step.num_tokens, step.first_position, step.block_tables,
            qkv.stride(0), step.block_tables.stride(0), self._factor, self._cap, self._window,
            **attention_constants(shape, tile, self._cap != 0.0, self._window != 0),
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip


def capability_of(device: torch.device) -> int:
    """Return the compute capability of a device, 80 for the interpreter's CPU."""
    if device.type != "cuda":
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def score_factors(rule: AttentionRule, head_dim: int) -> tuple[float, float]:
    """Return what the kernel multiplies products with, and its cap (0: none)."""
    scale = rule.scale_for(head_dim)
    if rule.softcap:
        return 2 * LOG2_E * scale / rule.softcap, LOG2_E * rule.softcap
    return LOG2_E * scale, 0.0


def attention_constants(
    shape: AttentionShape, tile: Tile, has_cap: bool, has_window: bool
) -> dict[str, int | bool]:
    """Return what `attention_kernel` is compiled for."""
    return {
        "NUM_KV_HEADS": shape.num_kv_heads,
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "PADDED_DIM": triton.next_power_of_2(shape.head_dim),
        "BLOCK_SIZE": shape.block_size,
        "TILE_ROWS": tile.rows,
        "TILE_KEYS": tile.keys,
        "HAS_CAP": has_cap,
        "HAS_WINDOW": has_window,
    }
