"""RMS norm, with the residual stream that it is part of.

    rms_norm        norm(x)                      of the model's input, or of single heads
    add_rms_norm    stream += x, norm(stream)    before attention and MLP
    rms_norm_add    stream += norm(x)            behind them (Gemma 2, OLMo 2)

A program takes a row. Each element is read once and written once, the stream in place; sums and
norms are float32. `add_rms_norm` normalizes the rounded sum, as a later layer would read it.
References: `core.kernels.linear.rms_norm`, `core.kernels.norm.TorchNormAdd`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rms_norm_kernel(
    x,  # [rows, size], rows x_stride apart
    stream,  # [rows, size], contiguous
    norm,  # float32 [size]
    out,  # [rows, size], contiguous
    x_stride,
    epsilon,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    ADDS_BEFORE: tl.constexpr,
    ADDS_BEHIND: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    o_size = tl.arange(0, PADDED_SIZE)
    m_size = o_size < SIZE
    b_x = tl.load(x + i_row * x_stride + o_size, mask=m_size, other=0.0).to(tl.float32)
    p_stream = stream + i_row * SIZE + o_size
    if ADDS_BEFORE:
        b_x += tl.load(p_stream, mask=m_size, other=0.0).to(tl.float32)
        rounded = b_x.to(stream.dtype.element_ty)
        tl.store(p_stream, rounded, mask=m_size)
        b_x = rounded.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(b_x * b_x, 0) / SIZE + epsilon)
    b_out = b_x * inverse * tl.load(norm + o_size, mask=m_size, other=0.0)
    if ADDS_BEHIND:
        b_out += tl.load(p_stream, mask=m_size, other=0.0).to(tl.float32)
        tl.store(p_stream, b_out.to(stream.dtype.element_ty), mask=m_size)
    else:
        tl.store(out + i_row * SIZE + o_size, b_out.to(out.dtype.element_ty), mask=m_size)


def rms_norm(x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
    """Return rms_norm(x); x [rows, size] with rows of any stride, norm float32 [size]."""
    out = x.new_empty(x.shape)
    _launch(x, out, norm, out, epsilon, adds_before=False, adds_behind=False)
    return out


def add_rms_norm(x: Tensor, stream: Tensor, norm: Tensor, epsilon: float) -> Tensor:
    """Add x to the residual stream in place and return rms_norm(stream); both [rows, size]."""
    out = torch.empty_like(stream)
    _launch(x, stream, norm, out, epsilon, adds_before=True, adds_behind=False)
    return out


def rms_norm_add(x: Tensor, stream: Tensor, norm: Tensor, epsilon: float) -> None:
    """Add rms_norm(x) to the residual stream in place; both [rows, size]."""
    _launch(x, stream, norm, stream, epsilon, adds_before=False, adds_behind=True)


def norm_warps(size: int) -> int:
    """Return how many warps share a row: about 16 elements a thread, if they may be 4 to 16."""
    padded: int = triton.next_power_of_2(size)
    return min(max(padded // 512, 4), 16)


def _launch(
    x: Tensor,
    stream: Tensor,
    norm: Tensor,
    out: Tensor,
    epsilon: float,
    *,
    adds_before: bool,
    adds_behind: bool,
) -> None:
    rows, size = x.shape
    assert x.stride(1) == 1, "a row of x must be contiguous"
    assert stream.is_contiguous(), "rows of the residual stream must follow each other"
    rms_norm_kernel[(rows,)](
        x, stream, norm, out, x.stride(0), epsilon,
        SIZE=size, PADDED_SIZE=triton.next_power_of_2(size),
        ADDS_BEFORE=adds_before, ADDS_BEHIND=adds_behind, num_warps=norm_warps(size),
    )  # fmt: skip
