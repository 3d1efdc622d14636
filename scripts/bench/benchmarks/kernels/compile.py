"""Compiles a Triton kernel for a GPU that is not there, and reads what came out.

Owns: compilation for a compute capability, registers and spills by the ptxas that Triton brings,
the matrix instructions in the PTX. Never knows: which kernels there are, or what they should cost.
Triton keeps what it has compiled in its cache on disk, by source, so a second run is quick.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

WARP_SIZE = 32
ALIGNED = [["tt.divisibility", 16]]
MATRIX_INSTRUCTIONS = ("mma.sync", "wgmma.mma_async", "tcgen05.mma")
USED = re.compile(r"Used (\d+) registers")
SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel with the types and constants that it is compiled for.

    `types` maps every argument that is no constant to its type in Triton's words (`*bf16`, `i32`);
    pointers and the arguments in `aligned` are promised to be multiples of 16.
    """

    name: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    aligned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one variant became: registers a thread, bytes a thread or block, instructions."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    matrix_instructions: dict[str, int]


def compile_variant(variant: Variant, capability: int) -> Compiled:
    """Compile for a compute capability such as 90; raise what the compiler raises."""
    target = GPUTarget("cuda", capability, WARP_SIZE)
    options = {
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        "enable_fp_fusion": True,
    }
    done = triton.compile(_source(variant), target=target, options=options)
    ptx = str(done.asm["ptx"])
    registers, spill_bytes = _read_ptxas(ptx, capability)
    return Compiled(
        registers=registers,
        spill_bytes=spill_bytes,
        shared_bytes=int(done.metadata.shared),
        matrix_instructions={
            name: ptx.count(name) for name in MATRIX_INSTRUCTIONS if ptx.count(name)
        },
    )


def _source(variant: Variant) -> ASTSource:
    names = variant.kernel.arg_names
    assert set(names) == set(variant.types) | set(variant.constants), f"arguments of {variant.name}"
    attributes = {
        (place,): ALIGNED
        for place, name in enumerate(names)
        if variant.types.get(name, "").startswith("*") or name in variant.aligned
    }
    return ASTSource(
        fn=variant.kernel,
        signature={name: variant.types.get(name, "constexpr") for name in names},
        constexprs=dict(variant.constants),
        attrs=attributes,
    )


def _read_ptxas(ptx: str, capability: int) -> tuple[int, int]:
    """Return (registers a thread, bytes spilled a thread)."""
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert target is not None, "PTX names its target"
    assembler = get_ptxas(capability)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        said = subprocess.run(
            [assembler.path, "-v", f"--gpu-name={target[1]}", source, "-o", f"{folder}/kernel"],
            capture_output=True, text=True, check=False,
        ).stderr  # fmt: skip
    used, spilled = USED.search(said), SPILLED.search(said)
    assert used is not None, said
    assert spilled is not None, said
    return int(used[1]), int(spilled[1]) + int(spilled[2])
