"""The gated activation of an MLP: act(gate) * up, where act is silu or gelu in its tanh form.

A program takes a piece of one row. Reads gate and up once, computes in float32, rounds once. The
reference is `torch_gated_activation`, with the activations of `core.kernels.linear`.
"""

import triton
import triton.language as tl
from torch import Tensor

from core.kernels.linear import ACTIVATIONS

TILE = 1024


def torch_gated_activation(gate_up: Tensor, activation: str = "silu") -> Tensor:
    """Return the reference; arguments as `gated_activation`."""
    gate, up = gate_up.float().chunk(2, dim=1)
    return (ACTIVATIONS[activation](gate) * up).to(gate_up.dtype)


@triton.jit
def gated_activation_kernel(
    gate_up,  # [rows, 2 * size], rows stride apart
    out,  # [rows, size], contiguous
    stride,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    IS_GELU: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    o_size = tl.program_id(1) * TILE + tl.arange(0, TILE)
    m_size = o_size < SIZE
    p_gate = gate_up + i_row * stride + o_size
    gate = tl.load(p_gate, mask=m_size, other=0.0).to(tl.float32)
    up = tl.load(p_gate + SIZE, mask=m_size, other=0.0).to(tl.float32)
    # gelu(x) ~ x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) (Hendrycks & Gimpel, 2016, section 2)
    bent = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if IS_GELU else gate
    active = gate / (1.0 + tl.exp(-bent))
    tl.store(out + i_row * SIZE + o_size, (active * up).to(out.dtype.element_ty), mask=m_size)


def gated_activation(gate_up: Tensor, activation: str = "silu") -> Tensor:
    """Return act(gate) * up [rows, size] of gate_up [rows, 2 * size]; `silu` or `gelu`.

    Raises KeyError for another activation.
    """
    assert gate_up.stride(1) == 1, "a row of gate_up must be contiguous"
    is_gelu = {"silu": False, "gelu": True}[activation]
    rows, size = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, size)
    gated_activation_kernel[(rows, triton.cdiv(size, TILE))](
        gate_up, out, gate_up.stride(0), SIZE=size, TILE=TILE, IS_GELU=is_gelu, num_warps=4
    )
    return out
