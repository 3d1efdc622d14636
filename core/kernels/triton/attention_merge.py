"""Joins the partial results of a row whose keys were cut into parts.

A program takes a few rows of one sequence and one KV head and goes through their parts in order.
Each part is a result over its own keys and the logarithm of its weights' sum, by which it counts
(Dao et al., Flash-Decoding, 2023). Reads each part once, writes each row once; all in float32. That
a row is the same in parts and in one piece is tested through `paged_attention`.
"""

import triton
import triton.language as tl
from torch import Tensor

from core.kernels.paged_attention import AttentionShape

MERGE_ROWS = 4


@triton.jit
def merge_kernel(
    partial_out,  # float32 [partials, kv heads, TILE_ROWS, head_dim]
    partial_sum,  # float32 [partials, kv heads, TILE_ROWS]
    out,  # [tokens, heads, head_dim], contiguous
    merge_sequence,  # int32 [merges], as the next two; negative for padding
    merge_first,
    merge_count,
    first_token,  # int32 [sequences], as the next one
    num_tokens,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    MERGE_ROWS: tl.constexpr,
):
    i_merge = tl.program_id(0)
    i_head = tl.program_id(1)
    sequence = tl.load(merge_sequence + i_merge)
    if sequence < 0:
        return
    first = tl.load(merge_first + i_merge).to(tl.int64)
    o_rows = tl.program_id(2) * MERGE_ROWS + tl.arange(0, MERGE_ROWS)
    o_dims = tl.arange(0, PADDED_DIM)
    m_rows = o_rows // GROUP < tl.load(num_tokens + sequence)
    m_tile = m_rows[:, None] & (o_dims < HEAD_DIM)[None, :]
    best = tl.full([MERGE_ROWS], -float("inf"), tl.float32)
    total = tl.zeros([MERGE_ROWS], tl.float32)
    b_out = tl.zeros([MERGE_ROWS, PADDED_DIM], tl.float32)
    for index in range(tl.load(merge_count + i_merge)):
        o_places = ((first + index) * NUM_KV_HEADS + i_head) * TILE_ROWS + o_rows
        weight = tl.load(partial_sum + o_places, mask=m_rows, other=-float("inf"))
        p_part = partial_out + o_places[:, None] * HEAD_DIM + o_dims[None, :]
        b_part = tl.load(p_part, mask=m_tile, other=0.0)
        higher = tl.maximum(best, weight)
        anchor = tl.where(higher == -float("inf"), 0.0, higher)
        share = tl.exp2(weight - anchor)
        shrink = tl.exp2(best - anchor)
        b_out = b_out * shrink[:, None] + b_part * share[:, None]
        total = total * shrink + share
        best = higher
    b_out = b_out / tl.where(total == 0.0, 1.0, total)[:, None]
    step_token = (tl.load(first_token + sequence) + o_rows // GROUP).to(tl.int64)
    o_heads = i_head * GROUP + o_rows % GROUP
    p_out = out + (step_token * NUM_KV_HEADS * GROUP + o_heads)[:, None] * HEAD_DIM
    tl.store(p_out + o_dims[None, :], b_out.to(out.dtype.element_ty), mask=m_tile)


def merge_partials(
    partial_out: Tensor,
    partial_sum: Tensor,
    out: Tensor,
    merges: tuple[Tensor, ...],
    first_token: Tensor,
    num_tokens: Tensor,
    shape: AttentionShape,
) -> None:
    """Join partial results into rows of `out` [tokens, heads * head_dim].

    partial_out float32 [partials, kv heads, tile rows, head_dim], partial_sum without the last, in
    powers of two; merges are sequence, first partial and number of partials, int32 [merges].
    """
    num_merges, tile_rows = len(merges[0]), partial_sum.shape[2]
    if num_merges:
        merge_kernel[(num_merges, shape.num_kv_heads, tile_rows // MERGE_ROWS)](
            partial_out, partial_sum, out, *merges, first_token, num_tokens,
            **merge_constants(shape, tile_rows), num_warps=4,
        )  # fmt: skip


def merge_constants(shape: AttentionShape, tile_rows: int) -> dict[str, int]:
    """Return what `merge_kernel` is compiled for."""
    return {
        "NUM_KV_HEADS": shape.num_kv_heads,
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "PADDED_DIM": triton.next_power_of_2(shape.head_dim),
        "TILE_ROWS": tile_rows,
        "MERGE_ROWS": MERGE_ROWS,
    }
