"""Sequences that grow step by step, computed by a Triton attention and by the reference.

Each has a cache of its own, full of NaN at first, and scattered blocks; qkv ends in rows of NaN
that belong to no sequence. A read of what no token of the sequence has written shows as NaN.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from core.kernels.paged_attention import (
    PLAIN_RULE,
    AttentionBatch,
    AttentionRule,
    AttentionShape,
    PagedAttention,
    TorchPagedAttention,
)
from core.kernels.triton.paged_attention import TritonPagedAttention
from tests.support.kernels.triton_device import DEVICE

NUM_BLOCKS = 161  # the first is nobody's: where a mask sends what must not be read
NUM_POSITIONS = 1024
NUM_SEQUENCES = 4
PADDING_ROWS = 3
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

Steps = tuple[dict[int, int], ...]  # tokens of each sequence that takes part, step by step
MakeAttention = Callable[[AttentionShape, Tensor, AttentionRule, torch.dtype], PagedAttention]


def rope(head_dim: int) -> Tensor:
    """Some table of cosines and sines."""
    exponents = torch.arange(head_dim // 2) / head_dim
    angles = torch.arange(NUM_POSITIONS).unsqueeze(1) / 100.0**exponents
    return torch.cat((angles.cos(), angles.sin()), dim=1).float().contiguous()


@dataclass(frozen=True)
class Case:
    """A model's attention and the steps that are computed with it."""

    shape: AttentionShape
    steps: Steps
    rule: AttentionRule = PLAIN_RULE
    dtype: torch.dtype = torch.float16  # the interpreter multiplies no matrices of bfloat16
    seed: int = 0

    def batches(self) -> list[AttentionBatch]:
        """Return the steps as batches over scattered blocks."""
        order = 1 + np.random.default_rng(3).permutation(NUM_BLOCKS - 1).astype(np.int32)
        tables = order.reshape(NUM_SEQUENCES, -1)
        lengths = np.zeros(NUM_SEQUENCES, dtype=np.int32)
        made = []
        for step in self.steps:
            numbers, counts = np.array(list(step)), np.array(list(step.values()), dtype=np.int32)
            blocks = -(-int((lengths[numbers] + counts).max()) // self.shape.block_size)
            made.append(
                AttentionBatch(
                    first_token=(np.cumsum(counts) - counts).astype(np.int32),
                    num_tokens=counts,
                    first_position=lengths[numbers],
                    block_tables=np.ascontiguousarray(tables[numbers, :blocks]),
                )
            )
            lengths[numbers] += counts
        return made

    def outputs(self, attention: PagedAttention, device: str) -> list[Tensor]:
        """Return what `attention` makes of the case, a tensor [tokens, heads * head_dim] a step."""
        generator = torch.Generator().manual_seed(self.seed)
        cache = torch.full(self.shape.cache_shape(NUM_BLOCKS), math.nan, dtype=self.dtype)
        cache = cache.to(device)
        results = []
        for batch in self.batches():
            rows = torch.randn(batch.total_tokens, self.shape.qkv_size, generator=generator)
            padded = torch.nn.functional.pad(rows, (0, 0, 0, PADDING_ROWS), value=math.nan)
            is_reference = isinstance(attention, TorchPagedAttention)
            attention.begin(batch)
            qkv = (rows if is_reference else padded).to(self.dtype).to(device)
            results.append(attention(qkv, cache)[: batch.total_tokens].cpu())
        return results

    def check(self, make: MakeAttention = TritonPagedAttention) -> None:
        """Raise AssertionError where `make`'s attention differs from the reference."""
        table = rope(self.shape.head_dim)
        got = self.outputs(make(self.shape, table.to(DEVICE), self.rule, self.dtype), DEVICE)
        expected = self.outputs(TorchPagedAttention(self.shape, table, self.rule), "cpu")
        tolerance = TOLERANCE[self.dtype]
        for index, (ours, reference) in enumerate(zip(got, expected, strict=True)):
            torch.testing.assert_close(
                ours, reference, rtol=tolerance, atol=tolerance,
                msg=f"step {index} of {self} differs from the reference",
            )  # fmt: skip
