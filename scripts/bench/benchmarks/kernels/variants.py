"""The Triton kernels as they are compiled ahead of time, and the work that each is reckoned with.

Owns: the list of variants, and for each a piece of work with its bytes and operations. Never knows:
machines. *Needed* is what the op needs at the least: every input read, every result written once.
*Moved* and *issued* add what this kernel does besides: padding of tiles to powers of two and to
matrix instructions, masked halves of tiles, partial results, second passes over a row.
"""

from dataclasses import dataclass

import triton

from core.kernels.paged_attention import PLAIN_RULE, AttentionRule, AttentionShape
from core.kernels.triton import (
    attention_merge,
    block_copy,
    choice,
    gated_activation,
    logprobs,
    paged_attention,
    rms_norm,
    rope_kv_write,
)
from core.kernels.triton.work_units import SPLIT_KEYS
from scripts.bench.benchmarks.kernels.compile import Variant

HEAD_DIMS = (64, 80, 96, 128, 256)
BLOCK_SIZES = (16, 32)
HEADS, KV_HEADS = 32, 8
HIDDEN, INTERMEDIATE, VOCABULARY = 4096, 14336, 128256
SEQUENCES, CONTEXT, PROMPT = 64, 4096, 4096
LAYERS, COPIES = 32, 64


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work: bytes, operations of products, exponentials, float64 additions, programs."""

    says: str
    bytes_needed: float
    bytes_moved: float
    flops_needed: float = 0.0
    flops_issued: float = 0.0
    exponentials: float = 0.0
    additions: float = 0.0
    programs: int = 1


@dataclass(frozen=True, slots=True)
class Listed:
    """A variant, its work, and whether it has matrix products or stands for the others in tests."""

    variant: Variant
    work: Work
    is_product: bool = False
    is_sample: bool = False


def variants(capability: int) -> list[Listed]:
    """Return all that is compiled for a compute capability."""
    listed = [
        _attention(head_dim, size, wide, capability=capability)
        for head_dim in HEAD_DIMS
        for size in BLOCK_SIZES
        for wide in (False, True)
    ]
    for wide in (False, True):
        listed.append(_attention(128, 16, wide, dtype="fp16", capability=capability))
        for head_dim in (128, 256):
            rule = AttentionRule(softcap=50.0, window=1024)
            listed.append(_attention(head_dim, 16, wide, rule, capability=capability))
    listed += [_merge(head_dim) for head_dim in HEAD_DIMS]
    listed += [_rope(head_dim, size) for head_dim in HEAD_DIMS for size in BLOCK_SIZES]
    listed += [_norm(size, *adds) for size in (576, 4096, 8192) for adds in _NORMS]
    listed += [_gated(name) for name in ("silu", "gelu")]
    return [*listed, _choice(), _logprobs(), _copy(16), _copy(32)]


_NORMS = (("rms_norm", False, False), ("add_rms_norm", True, False), ("rms_norm_add", False, True))


def _types(**names: str) -> dict[str, str]:
    """Return name: type from type="name name …"; `p_` stands for a pointer's asterisk."""
    return {
        name: kind.replace("p_", "*") for kind, joined in names.items() for name in joined.split()
    }


def _attention(
    head_dim: int,
    block_size: int,
    wide: bool,
    rule: AttentionRule = PLAIN_RULE,
    dtype: str = "bf16",
    *,
    capability: int,
) -> Listed:
    shape = AttentionShape(HEADS, KV_HEADS, head_dim, block_size)
    tile = (
        paged_attention.wide_tile(head_dim, capability)
        if wide
        else paged_attention.narrow_tile(head_dim)
    )
    types = _types(
        p_fp32="partial_out partial_sum",
        p_i32="unit_sequence unit_first_row unit_first_key unit_end_key unit_partial"
        " first_token num_tokens first_position block_tables",
        i32="query_stride table_stride window",
        fp32="factor cap",
    ) | dict.fromkeys(("queries", "cache", "out"), f"*{dtype}")
    kind, ending = "prefill" if wide else "decode", "_cap_window" if rule.window else ""
    constants = paged_attention.attention_constants(
        shape, tile, rule.softcap != 0.0, rule.window != 0
    )
    variant = Variant(
        f"attention_{kind}_{dtype}_d{head_dim}_b{block_size}{ending}",
        paged_attention.attention_kernel,
        types,
        constants,
        tile.num_warps,
        tile.num_stages,
        frozenset({"query_stride"}),
    )
    work = (_prefill_work if wide else _decode_work)(shape, tile, rule.window)
    is_sample = (head_dim, block_size, dtype, rule.window) == (128, 16, "bf16", 0)
    return Listed(variant, work, is_product=True, is_sample=is_sample)


def _decode_work(shape: AttentionShape, tile: paged_attention.Tile, window: int) -> Work:
    """64 sequences of 4,096 keys, a token each."""
    keys = min(window or CONTEXT, CONTEXT)
    cache = SEQUENCES * keys * 2 * shape.num_kv_heads * shape.head_dim * 2.0
    rows = SEQUENCES * shape.num_heads
    ends = rows * shape.head_dim * 2 * 2.0
    parts = -(-keys // SPLIT_KEYS)
    partials = parts * rows * (shape.head_dim + 1) * 4.0
    pairs = SEQUENCES * shape.num_kv_heads * keys
    padded = triton.next_power_of_2(shape.head_dim)
    return Work(
        f"{SEQUENCES} sequences, {keys} keys each",
        bytes_needed=cache + ends,
        bytes_moved=cache + ends + partials,
        flops_needed=4.0 * pairs * shape.group * shape.head_dim,
        flops_issued=4.0 * pairs * tile.rows * padded,
        exponentials=pairs * tile.rows,
        programs=SEQUENCES * shape.num_kv_heads * parts,
    )


def _prefill_work(shape: AttentionShape, tile: paged_attention.Tile, window: int) -> Work:
    """A prompt of 4,096 tokens; a tile's keys come from memory once a KV head, then from L2."""
    tokens_per_tile = tile.rows // shape.group
    seen = window or PROMPT
    pairs = sum(min(token + 1, seen) for token in range(PROMPT))
    covered = 0
    for first in range(0, PROMPT, tokens_per_tile):
        lowest = max(first - seen + 1, 0) // tile.keys * tile.keys
        covered += -(-(first + tokens_per_tile - lowest) // tile.keys) * tile.keys * tokens_per_tile
    cache = PROMPT * 2 * shape.num_kv_heads * shape.head_dim * 2.0
    ends = PROMPT * shape.num_heads * shape.head_dim * 2 * 2.0
    padded = triton.next_power_of_2(shape.head_dim)
    return Work(
        f"a prompt of {PROMPT} tokens",
        bytes_needed=cache + ends,
        bytes_moved=cache + ends,
        flops_needed=4.0 * pairs * shape.num_heads * shape.head_dim,
        flops_issued=4.0 * covered * shape.num_heads * padded,
        exponentials=covered * shape.num_heads,
        programs=PROMPT // tokens_per_tile * shape.num_kv_heads,
    )


def _merge(head_dim: int) -> Listed:
    shape, parts = AttentionShape(HEADS, KV_HEADS, head_dim, 16), CONTEXT // SPLIT_KEYS
    tile = paged_attention.narrow_tile(head_dim)
    types = _types(
        p_fp32="partial_out partial_sum",
        p_bf16="out",
        p_i32="merge_sequence merge_first merge_count first_token num_tokens",
    )
    variant = Variant(
        f"attention_merge_d{head_dim}",
        attention_merge.merge_kernel,
        types,
        attention_merge.merge_constants(shape, tile.rows),
    )
    rows = SEQUENCES * HEADS
    moved = rows * (parts * (head_dim + 1) * 4.0 + head_dim * 2.0)
    programs = SEQUENCES * KV_HEADS * tile.rows // attention_merge.MERGE_ROWS
    work = Work(f"{parts} parts of {rows} rows", moved, moved, programs=programs)
    return Listed(variant, work, is_sample=head_dim == 128)


def _rope(head_dim: int, block_size: int) -> Listed:
    types = _types(
        p_bf16="qkv cache",
        p_fp32="cos_sin",
        p_i32="token_sequence positions block_tables",
        i32="qkv_stride table_stride",
    )
    constants = {
        "NUM_HEADS": HEADS,
        "NUM_KV_HEADS": KV_HEADS,
        "HEAD_DIM": head_dim,
        "PADDED_HALF": triton.next_power_of_2(head_dim // 2),
        "BLOCK_SIZE": block_size,
        "TILE_HEADS": rope_kv_write.TILE_HEADS,
    }
    name = f"rope_kv_write_d{head_dim}_b{block_size}"
    variant = Variant(
        name,
        rope_kv_write.rope_kv_write_kernel,
        types,
        constants,
        aligned=frozenset({"qkv_stride"}),
    )
    heads = HEADS + 2 * KV_HEADS
    moved = PROMPT * head_dim * (2 * heads * 2.0 + 4.0)
    programs = PROMPT * -(-heads // rope_kv_write.TILE_HEADS)
    work = Work(f"{PROMPT} tokens", moved, moved, programs=programs)
    return Listed(variant, work, is_sample=(head_dim, block_size) == (80, 16))


def _norm(size: int, name: str, adds_before: bool, adds_behind: bool) -> Listed:
    types = _types(p_bf16="x stream out", p_fp32="norm", i32="x_stride", fp32="epsilon")
    constants = {
        "SIZE": size,
        "PADDED_SIZE": triton.next_power_of_2(size),
        "ADDS_BEFORE": adds_before,
        "ADDS_BEHIND": adds_behind,
    }
    variant = Variant(
        f"{name}_{size}",
        rms_norm.rms_norm_kernel,
        types,
        constants,
        rms_norm.norm_warps(size),
        aligned=frozenset({"x_stride"}),
    )
    accesses = {"rms_norm": 2, "add_rms_norm": 4, "rms_norm_add": 3}[name]
    moved = PROMPT * size * 2.0 * accesses
    work = Work(f"{PROMPT} tokens", moved, moved, programs=PROMPT)
    return Listed(variant, work, is_sample=(size, name) == (4096, "add_rms_norm"))


def _gated(activation: str) -> Listed:
    tile = gated_activation.TILE
    variant = Variant(
        f"gated_{activation}",
        gated_activation.gated_activation_kernel,
        _types(p_bf16="gate_up out", i32="stride"),
        {"SIZE": INTERMEDIATE, "TILE": tile, "IS_GELU": activation == "gelu"},
        aligned=frozenset({"stride"}),
    )
    moved = PROMPT * INTERMEDIATE * 3 * 2.0
    programs = PROMPT * -(-INTERMEDIATE // tile)
    exponentials = float(PROMPT * INTERMEDIATE)
    work = Work(f"{PROMPT} tokens", moved, moved, exponentials=exponentials, programs=programs)
    return Listed(variant, work, is_sample=activation == "gelu")


def _choice() -> Listed:
    types = _types(
        p_fp32="logits temperature top_p floor",
        p_i32="top_k choice output_index token_ids",
        p_i64="seed",
        p_i8="finite",
        i32="stride width",
    )
    constants = {
        "CHUNK": choice.CHUNK,
        "DIGIT_BITS": choice.DIGIT_BITS,
        "KEY_BITS": choice.KEY_BITS,
    }
    variant = Variant("choose", choice.choose_kernel, types, constants, choice.NUM_WARPS)
    row = VOCABULARY * 4.0
    # The best, the weight twice, the draw, and a pass a digit for each of the two borders.
    passes = 4 + 2 * choice.KEY_BITS // choice.DIGIT_BITS
    digits = choice.KEY_BITS // choice.DIGIT_BITS
    exponentials = SEQUENCES * VOCABULARY * (digits + 3.0)
    # Counts are integers, but as many as weights, so they are reckoned as if they were weights.
    additions = SEQUENCES * VOCABULARY * (2.0 * digits * 2**choice.DIGIT_BITS + 3)
    work = Work(
        f"{SEQUENCES} rows of {VOCABULARY}, top_k and top_p",
        SEQUENCES * row,
        SEQUENCES * row * passes,
        exponentials=exponentials,
        additions=additions,
        programs=SEQUENCES,
    )
    return Listed(variant, work, is_sample=True)


def _logprobs() -> Listed:
    types = _types(p_fp32="logits out", p_i32="token_ids", i32="stride width count")
    constants = {"MAX_COUNT": logprobs.MAX_COUNT, "CHUNK": logprobs.CHUNK}
    variant = Variant("token_logprobs", logprobs.token_logprobs_kernel, types, constants, 8)
    moved = SEQUENCES * VOCABULARY * 4.0
    work = Work(
        f"{SEQUENCES} rows of {VOCABULARY}",
        moved,
        moved,
        exponentials=2.0 * SEQUENCES * VOCABULARY,
        programs=SEQUENCES,
    )
    return Listed(variant, work, is_sample=True)


def _copy(block_size: int) -> Listed:
    words = AttentionShape(HEADS, KV_HEADS, 128, block_size).block_elements * 2
    words //= block_copy.WORD_BYTES
    variant = Variant(
        f"copy_blocks_b{block_size}",
        block_copy.copy_blocks_kernel,
        _types(p_i64="origin_layers goal_layers", p_i32="source target"),
        {"WORDS": words, "TILE": block_copy.TILE},
    )
    moved = 2.0 * COPIES * LAYERS * words * block_copy.WORD_BYTES
    programs = COPIES * LAYERS * -(-words // block_copy.TILE)
    work = Work(f"{COPIES} blocks of {LAYERS} layers", moved, moved, programs=programs)
    return Listed(variant, work, is_sample=block_size == 16)
