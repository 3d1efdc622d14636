"""The C++ products as an x86 CPU without AVX-512 gets them: the same numbers, only later.

They are compiled once a machine for a CPU that has SSE4 alone, with as little optimization as keeps
the compiler quick.
"""

import ctypes
import platform

import pytest
import torch
from torch import Tensor

from core.kernels import native
from core.kernels.matrix import QUANTIZATIONS
from core.kernels.native import PRODUCTS, WEIGHT_FORMATS, build_native
from core.kernels.selection import Kernels
from tests.support.kernels.grids import on_grid
from tests.support.kernels.native_kernels import kernel_cache

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86 CPUs"),
]

PLAIN_FLAGS = ("-std=c++17", "-O1", "-march=x86-64-v2", "-fno-math-errno", "-fPIC", "-fopenmp")
ROWS, INPUTS, COLUMNS = 14, 80, 61
EPSILON = 1e-5
TOLERANCE = {"none": 2**-6, "int8": 2**-4, "int4": 2**-4}


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """The products without AVX-512, bfloat16 or VNNI instructions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "FLAGS", PLAIN_FLAGS)
        products = ctypes.CDLL(str(build_native(kernel_cache(), ("linear.cpp",))))
    for kind in PRODUCTS:
        for weights in WEIGHT_FORMATS:
            getattr(products, f"headrace_{kind}_{weights}").argtypes = [ctypes.c_void_p]
    return products


def random(seed: int, *shape: int) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_products_need_no_fast_instructions(
    library: ctypes.CDLL, quantization: str, dtype: torch.dtype
) -> None:
    """Every format of weights gives the reference's numbers, whoever else is in the step."""
    gate, up = (
        on_grid(random(seed, COLUMNS, INPUTS).div(INPUTS**0.5)).to(dtype) for seed in (1, 2)
    )
    x, norm = random(3, ROWS, INPUTS).to(dtype), 1 + random(4, INPUTS) / 10
    plain, reference = (
        Kernels(one, dtype, QUANTIZATIONS[quantization]).gated(gate, up) for one in (library, None)
    )
    got = plain(x, norm, EPSILON)
    tolerance = TOLERANCE[quantization]
    torch.testing.assert_close(got, reference(x, norm, EPSILON), rtol=tolerance, atol=tolerance)
    assert torch.equal(plain(x[:3].contiguous(), norm, EPSILON), got[:3])
