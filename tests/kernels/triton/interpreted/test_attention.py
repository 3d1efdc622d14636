"""Rotary embedding, KV write, attention and merge on a GPU's cache, against the reference."""

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from core.kernels.paged_attention import AttentionBatch, AttentionRule, AttentionShape
from core.kernels.triton import paged_attention
from core.kernels.triton.paged_attention import TritonPagedAttention
from core.kernels.triton.rope_kv_write import rope_kv_write, split_cache
from core.kernels.triton.work_units import NO_PARTIAL, SPLIT_KEYS, cut
from tests.kernels.triton.interpreted.streams import Case, rope
from tests.support.kernels.triton_device import DEVICE, IS_INTERPRETED

# Prompt, then decode beside a chunk beside a prompt, with lengths on and off the block borders.
MIXED = ({0: 17}, {0: 1, 1: 33}, {1: 5, 0: 1, 2: 1}, {2: 1, 0: 1, 1: 1})
# One sequence beyond the first cut of its keys, then decodes with and without others.
LONG = ({3: SPLIT_KEYS + 7}, {3: 1, 0: 1}, {3: 2})


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_size_equals_the_reference(head_dim: int, block_size: int) -> None:
    """Prompts, chunks and decodes in one step, whatever the width of a head."""
    Case(AttentionShape(2, 1, head_dim, block_size), MIXED).check()


@pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter multiplies no matrices of bfloat16")
def test_bfloat16_equals_the_reference() -> None:
    """On a device, within the tolerance of 8 bits of mantissa."""
    Case(AttentionShape(2, 1, 64, 16), MIXED, dtype=torch.bfloat16).check()


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(6, 2), (7, 1), (4, 4)], ids=["group-3", "group-7", "group-1"]
)
def test_every_grouping_of_heads_equals_the_reference(heads: int, kv_heads: int) -> None:
    """Groups that are no power of two, and none at all."""
    Case(AttentionShape(heads, kv_heads, 64, 16), MIXED, dtype=torch.float32).check()


@pytest.mark.parametrize(
    "rule",
    [AttentionRule(softcap=5.0), AttentionRule(window=9), AttentionRule(0.3, 4.0, 20)],
    ids=["softcap", "window", "all"],
)
def test_every_rule_equals_the_reference(rule: AttentionRule) -> None:
    """Scale, soft cap and window, alone and together."""
    Case(AttentionShape(4, 2, 64, 16), MIXED, rule, torch.float32).check()


@pytest.mark.parametrize("window", [0, 530], ids=["all", "window"])
def test_a_long_decode_is_merged_from_parts(window: int) -> None:
    """Beyond `SPLIT_KEYS` keys the parts together are the reference's result."""
    rule = AttentionRule(window=window)
    Case(AttentionShape(2, 1, 64, 16), LONG, rule, torch.float32).check()


def test_a_result_does_not_depend_on_the_other_sequences() -> None:
    """A decode is bit for bit the same alone and beside others."""
    shape = AttentionShape(4, 2, 64, 16)
    alone = Case(shape, ({0: 40}, {0: 1}))
    beside = dataclasses.replace(alone, steps=({0: 40}, {0: 1, 1: 20, 2: 1}))
    first, second = (
        case.outputs(TritonPagedAttention(shape, rope(64).to(DEVICE)), DEVICE)[1][0]
        for case in (alone, beside)
    )
    assert torch.equal(first, second)


def test_padding_is_neither_read_nor_written() -> None:
    """A token of no sequence leaves its row and the whole cache as they were."""
    shape = AttentionShape(2, 1, 64, 16)
    qkv = torch.randn(2, shape.qkv_size).to(DEVICE)
    before = qkv.clone()
    cache = torch.full(shape.cache_shape(2), torch.nan).to(DEVICE)
    index = torch.tensor([0, -1], dtype=torch.int32, device=DEVICE)
    table = torch.tensor([[1]], dtype=torch.int32, device=DEVICE)
    rope_kv_write(qkv, cache, rope(64).to(DEVICE), index, torch.zeros_like(index), table, shape)
    assert torch.equal(qkv[1], before[1])
    keys, values = split_cache(cache, shape)
    assert torch.equal(values[1, 0, 0], before[0, -64:])
    assert int(torch.isfinite(keys).sum()) == int(torch.isfinite(values).sum()) == 64


def test_units_cover_every_row_and_key_once() -> None:
    """Tiles of one sequence do not overlap, parts of its keys neither, and merges name them all."""
    counts = np.array([1, 3, 200, 1], dtype=np.int32)
    first = np.array([0, 1, 4, 204], dtype=np.int32)
    positions = np.array([5, 2 * SPLIT_KEYS, 0, SPLIT_KEYS - 1], dtype=np.int32)
    batch = AttentionBatch(first, counts, positions, np.zeros((4, 80), dtype=np.int32))
    narrow, wide = cut(batch, AttentionShape(4, 1, 64, 16), 0, 128)
    assert narrow.sequence.tolist() == [0, 1, 1, 1, 3]
    assert narrow.first_key.tolist() == [0, 0, SPLIT_KEYS, 2 * SPLIT_KEYS, 0]
    assert narrow.end_key.tolist() == [6, SPLIT_KEYS, 2 * SPLIT_KEYS, 2 * SPLIT_KEYS + 3, 512]
    assert narrow.partial.tolist() == [NO_PARTIAL, 0, 1, 2, NO_PARTIAL]
    assert narrow.merge_sequence.tolist() == [1]
    assert narrow.merge_first.tolist() == [0]
    assert narrow.merge_count.tolist() == [narrow.num_partials] == [3]
    assert wide.first_row.tolist() == list(range(0, 800, 128))
    assert set(wide.end_key) == {200}


FAULTS = {
    "a block's slot is off by one": ("o_keys % BLOCK_SIZE", "(o_keys + 1) % BLOCK_SIZE"),
    "keys beyond the context are read": ("mask=m_keys[:, None] & m_dims[None, :]",
                                         "mask=(o_keys >= 0)[:, None] & m_dims[None, :]"),
    "the table of the next sequence": ("sequence.to(tl.int64) * table_stride", "0"),
    "a token sees its successor": ("(age >= 0) & m_keys", "(age >= -1) & m_keys"),
    "a part does not tell its sum": ("best + tl.log2(total)", "best"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str, tmp_path: Path) -> None:
    """Each wrong index, in a copy of the source, fails the comparison that the other tests pass."""
    shape = AttentionShape(2, 1, 64, 16)
    case = Case(shape, LONG if "part" in fault else MIXED, dtype=torch.float32)
    source = Path(paged_attention.__file__).read_text()
    right, wrong = FAULTS[fault]
    assert source.count(right) == 1
    copy = tmp_path / "faulty_attention.py"
    copy.write_text(source.replace(right, wrong))
    spec = importlib.util.spec_from_file_location("faulty_attention", copy)
    assert spec is not None
    assert spec.loader is not None
    faulty = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faulty)
    with pytest.raises(AssertionError):
        case.check(faulty.TritonPagedAttention)
