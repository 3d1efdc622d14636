"""Paged attention: the C++ kernel against the reference, and the reference against dense attention.

Every cache starts full of NaN and blocks are scattered, so a read of a key that no token of the
sequence wrote shows as NaN in the output.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from core.kernels.paged_attention import (
    PLAIN_RULE,
    AttentionBatch,
    AttentionRule,
    AttentionShape,
    NativePagedAttention,
    PagedAttention,
    TorchPagedAttention,
)
from tests.support.kernels.native_kernels import native_library

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"]
)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
NUM_BLOCKS = 160
NUM_POSITIONS = 1024


def make_shape(
    heads: int = 6, kv_heads: int = 2, head_dim: int = 32, block_size: int = 16
) -> AttentionShape:
    """A small shape with 3 query heads a KV head."""
    return AttentionShape(heads, kv_heads, head_dim, block_size)


def rope(head_dim: int) -> Tensor:
    """Some table of cosines and sines."""
    exponents = torch.arange(head_dim // 2) / head_dim
    angles = torch.arange(NUM_POSITIONS).unsqueeze(1) / 100.0**exponents
    return torch.cat((angles.cos(), angles.sin()), dim=1).float().contiguous()


def poisoned(shape: AttentionShape, dtype: torch.dtype) -> Tensor:
    """A layer's cache full of NaN."""
    return torch.full(shape.cache_shape(NUM_BLOCKS), math.nan, dtype=dtype)


class Stream:
    """Sequences that grow step by step in scattered blocks, computed by one implementation."""

    def __init__(
        self, attention: PagedAttention, shape: AttentionShape, dtype: torch.dtype
    ) -> None:
        self._attention = attention
        self._shape = shape
        self._cache = poisoned(shape, dtype)
        order = np.random.default_rng(3).permutation(NUM_BLOCKS).astype(np.int32)
        self._tables = order.reshape(4, -1)
        self._lengths = np.zeros(4, dtype=np.int32)

    def extend(self, parts: dict[int, Tensor]) -> dict[int, Tensor]:
        """Compute qkv rows for some of the sequences 0..3; return their attention."""
        numbers = np.array(list(parts))
        counts = np.array([len(part) for part in parts.values()], dtype=np.int32)
        ends = self._lengths[numbers] + counts
        blocks = -(-int(ends.max()) // self._shape.block_size)
        batch = AttentionBatch(
            first_token=(np.cumsum(counts) - counts).astype(np.int32),
            num_tokens=counts,
            first_position=self._lengths[numbers],
            block_tables=np.ascontiguousarray(self._tables[numbers, :blocks]),
        )
        self._attention.begin(batch)
        out = self._attention(torch.cat(list(parts.values())), self._cache)
        self._lengths[numbers] = ends
        return dict(zip(parts, torch.split(out, counts.tolist()), strict=True))

    def forget(self, sequence: int, num_tokens: int) -> None:
        """Spoil the first blocks of a sequence, those of its first `num_tokens`."""
        blocks = self._tables[sequence, : num_tokens // self._shape.block_size]
        self._cache[torch.from_numpy(blocks).long()] = math.nan


def random_rows(shape: AttentionShape, tokens: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random queries, keys and values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, shape.qkv_size, generator=generator).to(dtype)


MakeStream = Callable[..., Stream]


def native(shape: AttentionShape, dtype: torch.dtype, rule: AttentionRule = PLAIN_RULE) -> Stream:
    """A stream on the C++ kernel."""
    kernel = NativePagedAttention(native_library(), shape, rope(shape.head_dim), dtype, rule)
    return Stream(kernel, shape, dtype)


def reference(
    shape: AttentionShape, dtype: torch.dtype, rule: AttentionRule = PLAIN_RULE
) -> Stream:
    """A stream on the plain-torch reference."""
    return Stream(TorchPagedAttention(shape, rope(shape.head_dim), rule), shape, dtype)


def dense(qkv: Tensor, shape: AttentionShape, window: int = 0) -> Tensor:
    """Attention of a whole sequence at once, without any cache: float32 [tokens, heads * size]."""
    heads = qkv.float().view(len(qkv), -1, shape.head_dim).transpose(0, 1)
    cos, sin = rope(shape.head_dim)[: len(qkv)].chunk(2, dim=1)
    turn = torch.complex(cos.contiguous(), sin.contiguous())

    def rotated(x: Tensor) -> Tensor:
        pairs = torch.complex(*(half.contiguous() for half in x.chunk(2, dim=-1)))
        return torch.cat(((pairs * turn).real, (pairs * turn).imag), dim=-1)

    kv_end = shape.num_heads + shape.num_kv_heads
    queries, keys = rotated(heads[: shape.num_heads]), rotated(heads[shape.num_heads : kv_end])
    keys = keys.repeat_interleave(shape.group, 0)
    values = heads[kv_end:].repeat_interleave(shape.group, 0)
    seen = torch.ones(len(qkv), len(qkv)).tril().bool()
    if window:
        seen = seen & ~torch.ones(len(qkv), len(qkv)).tril(-window).bool()
    out = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
    return out.transpose(0, 1).reshape(len(qkv), -1)


@DTYPES
@pytest.mark.parametrize("block_size", [8, 16, 32, 256])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(9, 3, 64), (4, 4, 16), (16, 1, 48), (13, 1, 80)],
    ids=["H9-K3-D64", "H4-K4-D16", "H16-K1-D48", "H13-K1-D80"],
)
def test_native_equals_reference_on_mixed_steps(
    heads: int, kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    """Prefill chunks over cached prefixes mixed with decodes agree, for odd shapes and sizes."""
    shape = make_shape(heads, kv_heads, head_dim, block_size)
    streams = native(shape, dtype), reference(shape, dtype)
    steps = [{0: 5, 1: 33}, {0: 1, 1: 1, 2: 70}, {2: 1, 1: 7, 0: 1, 3: 1}, {0: 1, 1: 1, 2: 1}]
    for index, step in enumerate(steps):
        parts = {s: random_rows(shape, n, dtype, 10 * index + s) for s, n in step.items()}
        got, expected = (stream.extend(parts) for stream in streams)
        for sequence in step:
            torch.testing.assert_close(
                got[sequence], expected[sequence], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
            )


@DTYPES
@pytest.mark.parametrize("make", [native, reference], ids=["native", "reference"])
def test_paged_equals_dense_attention(make: MakeStream, dtype: torch.dtype) -> None:
    """A sequence of several softmax chunks in pieces equals dense attention over the whole."""
    shape = make_shape(3, 1, 64, 32)
    qkv = random_rows(shape, 600, dtype)
    stream = make(shape, dtype)
    got = torch.cat([stream.extend({1: part})[1] for part in torch.split(qkv, [1, 255, 3, 340, 1])])
    expected = dense(qkv, shape)
    torch.testing.assert_close(
        got.float(), expected, rtol=2 * TOLERANCE[dtype], atol=2 * TOLERANCE[dtype]
    )


WINDOWS = pytest.mark.parametrize("window", [1, 5, 255, 256, 257, 300, 2000])


@DTYPES
@WINDOWS
@pytest.mark.parametrize("make", [native, reference], ids=["native", "reference"])
def test_a_window_hides_older_keys(make: MakeStream, window: int, dtype: torch.dtype) -> None:
    """Over several softmax chunks in pieces a token sees the last `window` keys and no other."""
    shape = make_shape(6, 2, 32, 16)
    qkv = random_rows(shape, 600, dtype)
    stream = make(shape, dtype, AttentionRule(window=window))
    parts = torch.split(qkv, [1, 250, 7, 341, 1])
    got = torch.cat([stream.extend({1: part})[1] for part in parts])
    torch.testing.assert_close(
        got.float(),
        dense(qkv, shape, window),
        rtol=2 * TOLERANCE[dtype],
        atol=2 * TOLERANCE[dtype],
    )


def test_keys_before_the_window_are_not_read() -> None:
    """Blocks wholly before the softmax chunk in which a window begins may hold anything."""
    shape, dtype = make_shape(), torch.float32
    stream = native(shape, dtype, AttentionRule(window=20))
    qkv = random_rows(shape, 601, dtype)
    stream.extend({0: qkv[:600]})
    stream.forget(0, 512)
    assert stream.extend({0: qkv[600:]})[0].isfinite().all()


@DTYPES
@pytest.mark.parametrize("softcap", [0.5, 3.0, 50.0])
def test_capped_scores_equal_the_reference(softcap: float, dtype: torch.dtype) -> None:
    """Scores far beyond and far below the cap are bent as by tanh, with a scale of its own."""
    shape = make_shape(head_dim=48)
    rule = AttentionRule(scale=0.7, softcap=softcap, window=90)
    streams = native(shape, dtype, rule), reference(shape, dtype, rule)
    for step in ({0: 300, 1: 1}, {0: 1, 1: 9}, {0: 1, 1: 1}):
        parts = {s: random_rows(shape, n, dtype, 7 * n + s) for s, n in step.items()}
        got, expected = (stream.extend(parts) for stream in streams)
        for sequence in step:
            torch.testing.assert_close(
                got[sequence], expected[sequence], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
            )


RULES = pytest.mark.parametrize(
    "rule", [PLAIN_RULE, AttentionRule(0.3, 2.0, 11)], ids=["plain", "capped-window"]
)


@DTYPES
@RULES
def test_a_row_does_not_depend_on_chunking_or_neighbours(
    dtype: torch.dtype, rule: AttentionRule
) -> None:
    """Attention of a token is bit-identical in one prefill, token by token, and among others."""
    shape = make_shape()
    qkv = random_rows(shape, 41, dtype)
    whole = native(shape, dtype, rule).extend({0: qkv})[0]
    stream = native(shape, dtype, rule)
    single = torch.cat([stream.extend({0: token})[0] for token in torch.split(qkv, 1)])
    assert torch.equal(whole, single)
    crowd = native(shape, dtype, rule)
    pieces = []
    for seed, part in enumerate(torch.split(qkv, 7)):
        neighbours = {n: random_rows(shape, 2 + n, dtype, seed + n) for n in (1, 2, 3)}
        pieces.append(crowd.extend({**neighbours, 0: part})[0])
    assert torch.equal(whole, torch.cat(pieces))


def test_sequences_may_share_prefix_blocks() -> None:
    """Two block tables that begin with the same blocks read the same prefix."""
    shape, dtype = make_shape(), torch.float32
    cos_sin = rope(shape.head_dim)
    kernel = NativePagedAttention(native_library(), shape, cos_sin, dtype)
    cache = poisoned(shape, dtype)
    qkv = random_rows(shape, 20, dtype)

    def extend(rows: Tensor, first_position: int, blocks: list[int]) -> Tensor:
        zero = np.zeros(1, dtype=np.int32)
        batch = AttentionBatch(
            zero,
            np.array([len(rows)], dtype=np.int32),
            np.array([first_position], dtype=np.int32),
            np.array([blocks], dtype=np.int32),
        )
        kernel.begin(batch)
        return kernel(rows, cache)

    first = extend(qkv, 0, [5, 6])
    second = extend(qkv[16:], 16, [5, 9])
    assert torch.equal(first[16:], second)


@DTYPES
def test_nan_of_one_sequence_stays_with_it(dtype: torch.dtype) -> None:
    """A sequence with NaN values does not touch the others of the step."""
    shape = make_shape()
    stream = native(shape, dtype)
    bad = random_rows(shape, 9, dtype, 1)
    bad[4] = math.nan
    out = stream.extend({0: random_rows(shape, 9, dtype), 1: bad, 2: random_rows(shape, 1, dtype)})
    assert out[0].isfinite().all()
    assert out[2].isfinite().all()
    assert out[1][4:].isnan().any(dim=1).all()


def test_large_scores_do_not_overflow() -> None:
    """Scores far apart give a one-hot softmax, not NaN."""
    shape = make_shape(1, 1, 16, 8)
    qkv = random_rows(shape, 300, torch.float32) * 20
    got = native(shape, torch.float32).extend({0: qkv})[0]
    expected = reference(shape, torch.float32).extend({0: qkv})[0]
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)


def test_work_units_cover_every_row_once() -> None:
    """Whatever the sequence lengths, each (token, head) row is in exactly one unit of the step."""
    shape = make_shape(15, 3, 16, 8)
    for lengths in itertools.product((1, 2, 5, 13), repeat=2):
        parts = {s: random_rows(shape, n, torch.float32, s) for s, n in enumerate(lengths)}
        got = native(shape, torch.float32).extend(parts)
        expected = reference(shape, torch.float32).extend(parts)
        for sequence in parts:
            torch.testing.assert_close(got[sequence], expected[sequence], rtol=1e-4, atol=1e-5)
