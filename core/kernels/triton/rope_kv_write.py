"""Rotary embedding of queries and keys, and the write of keys and values into the paged cache.

Owns: the layout of the cache on a GPU. Cache of a layer, [blocks, kv heads, 2 * block_size *
head_dim] elements: of each block and head first the keys, then the values, both
[block_size, head_dim]; so a block is one contiguous piece, and a tile of keys is rows of a matrix.

A program takes one token and some of its heads. Reads a row of qkv and a row of the table, writes
the row's queries back in place and its keys and values into the cache. The reference is
`core.kernels.paged_attention.TorchPagedAttention`, which rotates and writes in the same precision:
float32, rounded once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from core.kernels.paged_attention import AttentionShape

TILE_HEADS = 8


def split_cache(cache: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor]:
    """Return (keys, values) views of a layer's cache: [blocks, kv heads, block_size, head_dim]."""
    halves = cache.view(*cache.shape[:2], 2, shape.block_size, shape.head_dim)
    return halves[:, :, 0], halves[:, :, 1]


@triton.jit
def rope_kv_write_kernel(
    qkv,  # [tokens, heads + 2 kv heads, head_dim], queries rotated in place
    cache,  # [blocks, kv heads, 2, block_size, head_dim]
    cos_sin,  # float32 [positions, head_dim], cosines of the first half, then sines
    token_sequence,  # int32 [tokens], negative for padding, which is left alone
    positions,  # int32 [tokens]
    block_tables,  # int32 [sequences, table_stride]
    qkv_stride,
    table_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_HEADS: tl.constexpr,
):
    HALF: tl.constexpr = HEAD_DIM // 2
    i_token = tl.program_id(0)
    sequence = tl.load(token_sequence + i_token)
    if sequence >= 0:
        position = tl.load(positions + i_token)
        o_heads = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)
        o_dims = tl.arange(0, PADDED_HALF)
        m_dims = o_dims < HALF
        m_tile = (o_heads < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None] & m_dims[None, :]
        is_query = (o_heads < NUM_HEADS)[:, None]
        is_value = (o_heads >= NUM_HEADS + NUM_KV_HEADS)[:, None]
        p_row = qkv + i_token.to(tl.int64) * qkv_stride
        p_low = p_row + o_heads[:, None] * HEAD_DIM + o_dims[None, :]  # [TILE_HEADS, PADDED_HALF]
        b_low = tl.load(p_low, mask=m_tile, other=0.0).to(tl.float32)
        b_high = tl.load(p_low + HALF, mask=m_tile, other=0.0).to(tl.float32)
        p_turn = cos_sin + position.to(tl.int64) * HEAD_DIM + o_dims
        b_cos = tl.load(p_turn, mask=m_dims, other=1.0)[None, :]
        b_sin = tl.load(p_turn + HALF, mask=m_dims, other=0.0)[None, :]
        turned_low = tl.where(is_value, b_low, b_low * b_cos - b_high * b_sin)
        turned_high = tl.where(is_value, b_high, b_high * b_cos + b_low * b_sin)
        turned_low = turned_low.to(qkv.dtype.element_ty)
        turned_high = turned_high.to(qkv.dtype.element_ty)
        tl.store(p_low, turned_low, mask=m_tile & is_query)
        tl.store(p_low + HALF, turned_high, mask=m_tile & is_query)
        block = tl.load(block_tables + sequence * table_stride + position // BLOCK_SIZE)
        kv_head = (o_heads[:, None] - NUM_HEADS) % NUM_KV_HEADS
        piece = (block.to(tl.int64) * NUM_KV_HEADS + kv_head) * 2 + is_value.to(tl.int64)
        slot = piece * BLOCK_SIZE + position % BLOCK_SIZE
        p_slot = cache + slot * HEAD_DIM + o_dims[None, :]
        tl.store(p_slot, turned_low, mask=m_tile & ~is_query)
        tl.store(p_slot + HALF, turned_high, mask=m_tile & ~is_query)


def rope_kv_write(
    qkv: Tensor,
    cache: Tensor,
    cos_sin: Tensor,
    token_sequence: Tensor,
    positions: Tensor,
    block_tables: Tensor,
    shape: AttentionShape,
) -> None:
    """Rotate and write every token of a step.

    qkv [tokens, qkv_size] with rows of any stride, queries rotated in place; cache see above;
    cos_sin float32 [positions, head_dim]; token_sequence, positions int32 [tokens]; block_tables
    int32 [sequences, blocks], contiguous.
    """
    assert qkv.stride(1) == 1, "a row of qkv must be contiguous"
    assert cos_sin.dtype == torch.float32, "the rotary table must be float32"
    heads = shape.num_heads + 2 * shape.num_kv_heads
    rope_kv_write_kernel[(len(qkv), triton.cdiv(heads, TILE_HEADS))](
        qkv,
        cache,
        cos_sin,
        token_sequence,
        positions,
        block_tables,
        qkv.stride(0),
        block_tables.stride(0),
        NUM_HEADS=shape.num_heads,
        NUM_KV_HEADS=shape.num_kv_heads,
        HEAD_DIM=shape.head_dim,
        PADDED_HALF=triton.next_power_of_2(shape.head_dim // 2),
        BLOCK_SIZE=shape.block_size,
        TILE_HEADS=TILE_HEADS,
        num_warps=4,
    )
