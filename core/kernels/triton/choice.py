"""Choosing tokens from logits: the best one, or one draw from the filtered softmax.

Owns: the rules of `core.kernels.choice` and `core.executor.philox` on a GPU, which are the
references. Never knows: penalties, or who asked.

A program takes a row. Nothing is sorted: a filter keeps all logits from a border on, and the
border is the largest value for which the logits from it on are enough, by their number (top_k) or
by their weight (top_p). It is found digit by digit: floats are mapped to integers in the same
order, and each pass over the row tries all 16 values of the next 4 bits (radix select, weighted).
The last pass walks the cumulative weights, float64, in vocabulary order. Passes after the first
find the row in the L2 cache. What a row does not use costs nothing: a greedy row is read once.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 1024
NUM_WARPS = 16
DIGIT_BITS = 4
KEY_BITS = 32


@dataclass(frozen=True, slots=True)
class DrawTensors:
    """How n rows are drawn, tensors [n] on the device.

    `temperature` float32, 0 = the best logit; `top_k` int32, 0 = all; `top_p` float32; `floor`
    float32, the log of min_p; `seed` int64 holding the 64 bits, `choice` and `output_index` int32
    as in `core.executor.philox`.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    floor: Tensor
    seed: Tensor
    choice: Tensor
    output_index: Tensor


@triton.jit
def _uniform(seed, choice, output_index):
    """Return a float64 in [0, 1) with 53 random bits."""
    zero = output_index * 0
    high, low, _, _ = tl.philox(seed, output_index, choice, zero, zero, n_rounds=10)
    high = high.to(tl.uint64) >> 5
    low = low.to(tl.uint64) >> 6
    return (high * 67108864 + low).to(tl.float64) / 9007199254740992.0


@triton.jit
def _scaled(p_row, first, width, temperature, largest, CHUNK: tl.constexpr):
    """Return logits / temperature relative to the largest one; minus infinity beyond the row."""
    o_ids = first + tl.arange(0, CHUNK)
    b_logits = tl.load(p_row + o_ids, mask=o_ids < width, other=-float("inf"))
    return tl.div_rn(b_logits, tl.zeros([CHUNK], tl.float32) + temperature) - largest


@triton.jit
def _ordered(values):
    """Return float32 as uint32 in the same order."""
    bits = values.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits ^ 0x80000000)


@triton.jit
def _border(
    p_row, width, temperature, largest, floor, target,
    BY_WEIGHT: tl.constexpr, CHUNK: tl.constexpr, DIGIT_BITS: tl.constexpr, KEY_BITS: tl.constexpr,
):  # fmt: skip
    """Return the largest key from which on the logits reach `target`: their number or weight.

    Of those whose key is below `floor` the weight does not count.
    """
    DIGITS: tl.constexpr = 1 << DIGIT_BITS
    digits = tl.arange(0, DIGITS).to(tl.uint32)
    border = tl.min(digits, 0)
    for index in range(KEY_BITS // DIGIT_BITS):
        shift = KEY_BITS - DIGIT_BITS * (index + 1)
        pivots = border + (digits << shift)
        reached = tl.zeros([DIGITS, CHUNK], tl.float64 if BY_WEIGHT else tl.int32)
        for first in range(0, width, CHUNK):
            scaled = _scaled(p_row, first, width, temperature, largest, CHUNK)
            keys = _ordered(scaled)
            if BY_WEIGHT:
                measure = tl.where(keys >= floor, tl.exp(scaled), 0.0).to(tl.float64)
            else:
                measure = (scaled > -float("inf")).to(tl.int32)
            counts = keys[None, :] >= pivots[:, None]
            reached += tl.where(counts, measure[None, :], tl.zeros_like(reached))
        enough = tl.sum(reached, 1) >= target
        border += tl.max(tl.where(enough, digits, 0), 0) << shift
    return border


@triton.jit
def _best(p_row, width, CHUNK: tl.constexpr):
    """Return (largest logit, first index of it, whether the row holds a NaN)."""
    o_chunk = tl.arange(0, CHUNK)
    best = tl.full([CHUNK], -float("inf"), tl.float32)
    place = tl.zeros([CHUNK], tl.int32) + width - 1
    nans = tl.zeros([CHUNK], tl.int32)
    for first in range(0, width, CHUNK):
        o_ids = first + o_chunk
        b_logits = tl.load(p_row + o_ids, mask=o_ids < width, other=-float("inf"))
        place = tl.where(b_logits > best, o_ids, place)
        best = tl.where(b_logits > best, b_logits, best)
        nans += (b_logits != b_logits).to(tl.int32)
    largest = tl.max(best, 0)
    first_place = tl.min(tl.where(best == largest, place, width - 1), 0)
    return largest, first_place, tl.max(nans, 0) > 0


@triton.jit
def _weight(p_row, width, temperature, largest, floor, CHUNK: tl.constexpr):
    """Return the weight of all that is kept, float64."""
    weights = tl.zeros([CHUNK], tl.float64)
    for first in range(0, width, CHUNK):
        scaled = _scaled(p_row, first, width, temperature, largest, CHUNK)
        weights += tl.where(_ordered(scaled) >= floor, tl.exp(scaled), 0.0).to(tl.float64)
    return tl.sum(weights, 0)


@triton.jit
def _draw(p_row, width, temperature, largest, floor, uniform, CHUNK: tl.constexpr):
    """Return the first kept id at which the cumulative weight exceeds its share `uniform`."""
    o_chunk = tl.arange(0, CHUNK)
    target = _weight(p_row, width, temperature, largest, floor, CHUNK) * uniform
    before = target * 0.0
    drawn = width
    last_kept = width - 1
    for first in range(0, width, CHUNK):
        scaled = _scaled(p_row, first, width, temperature, largest, CHUNK)
        weight = tl.where(_ordered(scaled) >= floor, tl.exp(scaled), 0.0)
        cumulative = before + tl.cumsum(weight.to(tl.float64), 0)
        o_ids = first + o_chunk
        over = (weight > 0.0) & (cumulative > target)
        drawn = tl.minimum(drawn, tl.min(tl.where(over, o_ids, width), 0))
        kept_here = tl.max(tl.where(weight > 0.0, o_ids, -1), 0)
        last_kept = tl.where(kept_here >= 0, kept_here, last_kept)
        before += tl.sum(weight.to(tl.float64), 0)
    return tl.where(drawn < width, drawn, last_kept)  # rounding may leave the end unreached


@triton.jit
def choose_kernel(
    logits,  # float32 [rows, width], rows stride apart
    temperature,  # [rows], as the next seven; see `DrawTensors`
    top_k,
    top_p,
    floor,
    seed,
    choice,
    output_index,
    token_ids,  # int32 [rows]
    finite,  # int8 [rows]
    stride,
    width,
    CHUNK: tl.constexpr,
    DIGIT_BITS: tl.constexpr,
    KEY_BITS: tl.constexpr,
):
    i_row = tl.program_id(0)
    p_row = logits + i_row.to(tl.int64) * stride
    best, token_id, has_nan = _best(p_row, width, CHUNK)
    is_finite = (best > -float("inf")) & (best < float("inf")) & (has_nan == 0)
    heat = tl.load(temperature + i_row)
    if (heat > 0.0) & is_finite:
        largest = tl.div_rn(best, heat)
        lowest = _ordered(tl.load(floor + i_row))
        wanted = tl.load(top_k + i_row)
        share = tl.load(top_p + i_row)
        if wanted > 0:
            kth = _border(
                p_row, width, heat, largest, lowest, wanted, False, CHUNK, DIGIT_BITS, KEY_BITS
            )
            lowest = tl.maximum(lowest, kth)
        if share < 1.0:
            total = _weight(p_row, width, heat, largest, lowest, CHUNK)
            target = total * share.to(tl.float64)
            nucleus = _border(
                p_row, width, heat, largest, lowest, target, True, CHUNK, DIGIT_BITS, KEY_BITS
            )
            lowest = tl.maximum(lowest, nucleus)
        uniform = _uniform(
            tl.load(seed + i_row), tl.load(choice + i_row), tl.load(output_index + i_row)
        )
        token_id = _draw(p_row, width, heat, largest, lowest, uniform, CHUNK)
    tl.store(token_ids + i_row, token_id)
    tl.store(finite + i_row, is_finite.to(tl.int8))


def choose(logits: Tensor, rules: DrawTensors) -> tuple[Tensor, Tensor]:
    """Return (token ids int32 [rows], finite int8 [rows]) of logits float32 [rows, width].

    Of equal best logits the first; any id where the row is not finite (`finite` 0).
    """
    assert logits.dtype == torch.float32, "logits must be float32"
    assert logits.stride(1) == 1, "a row of logits must be contiguous"
    rows, width = logits.shape
    token_ids = torch.empty(rows, dtype=torch.int32, device=logits.device)
    finite = torch.empty(rows, dtype=torch.int8, device=logits.device)
    choose_kernel[(rows,)](
        logits, rules.temperature, rules.top_k, rules.top_p, rules.floor, rules.seed,
        rules.choice, rules.output_index, token_ids, finite, logits.stride(0), width,
        CHUNK=CHUNK, DIGIT_BITS=DIGIT_BITS, KEY_BITS=KEY_BITS, num_warps=NUM_WARPS,
    )  # fmt: skip
    return token_ids, finite
