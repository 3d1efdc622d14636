"""Log-probabilities of given tokens, without writing the log-softmax of the whole row.

A program takes a row of logits and reads it once, for its maximum and the sum of its weights in one
pass (online softmax: Milakov & Gimelshein, 2018), then the wanted logits again. Sums are float32, a
partial sum a lane. However many are wanted, the kernel is the same: one that came with the first
request that wants five would be compiled in a step. The reference is `torch_token_logprobs`.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 2048
MAX_COUNT = 32  # wanted tokens of a row


def torch_token_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Return the reference; arguments as `token_logprobs`."""
    wanted = token_ids.long()
    found = torch.log_softmax(logits.float(), dim=1).gather(1, wanted.clamp(min=0))
    return found.masked_fill(wanted < 0, math.nan)


@triton.jit(do_not_specialize=["count"])
def token_logprobs_kernel(
    logits,  # [rows, width], rows stride apart
    token_ids,  # int32 [rows, count], negative where there is none
    out,  # float32 [rows, count]
    stride,
    width,
    count,
    MAX_COUNT: tl.constexpr,
    CHUNK: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    p_row = logits + i_row * stride
    o_chunk = tl.arange(0, CHUNK)
    best = tl.full([CHUNK], -float("inf"), tl.float32)
    total = tl.zeros([CHUNK], tl.float32)
    for first in range(0, width, CHUNK):
        m_chunk = first + o_chunk < width
        b_logits = tl.load(p_row + first + o_chunk, mask=m_chunk, other=-float("inf"))
        b_logits = b_logits.to(tl.float32)
        higher = tl.maximum(best, b_logits)
        anchor = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(best - anchor) + tl.exp(b_logits - anchor)
        best = higher
    largest = tl.max(best, 0)
    anchor = tl.where(largest == -float("inf"), 0.0, largest)
    log_total = anchor + tl.log(tl.sum(total * tl.exp(best - anchor), 0))
    o_ids = tl.arange(0, MAX_COUNT)
    m_ids = o_ids < count
    ids = tl.load(token_ids + i_row * count + o_ids, mask=m_ids, other=-1)
    chosen = tl.load(p_row + ids, mask=ids >= 0, other=float("nan")).to(tl.float32)
    tl.store(out + i_row * count + o_ids, chosen - log_total, mask=m_ids)


def token_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Return the log-probability of each of `token_ids`, float32 [rows, count].

    logits [rows, width]; token_ids int32 [rows, count] below width, NaN where they are negative;
    count up to MAX_COUNT.
    """
    assert logits.stride(1) == 1, "a row of logits must be contiguous"
    assert token_ids.is_contiguous(), "rows of token ids must follow each other"
    rows, count = token_ids.shape
    assert count <= MAX_COUNT, count
    out = torch.empty(rows, count, dtype=torch.float32, device=logits.device)
    token_logprobs_kernel[(rows,)](
        logits, token_ids, out, logits.stride(0), logits.shape[1], count,
        MAX_COUNT=MAX_COUNT, CHUNK=CHUNK, num_warps=8,
    )  # fmt: skip
    return out
