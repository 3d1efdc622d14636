"""The Triton kernels ahead of time: they compile for every GPU, spill nothing, and fit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.benchmarks.kernels.__main__ import (
    GPUS,
    faults,
    reckon,
    resident_blocks,
    unevenness,
)
from scripts.bench.benchmarks.kernels.compile import Compiled
from scripts.bench.benchmarks.kernels.variants import HEAD_DIMS, Work, variants

ROOT = Path(__file__).resolve().parents[4]
A100, H100, B200 = GPUS
FINE = Compiled(64, 0, 40_000, {"mma.sync": 8})
LARGE = Compiled(64, 0, 170_000, {"mma.sync": 8})
DECODE, PREFILL = variants(80)[:2]


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """What the command says of one variant of each kernel on every GPU."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench.benchmarks.kernels", "--samples", "--json"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)["figures"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_kernel_compiles_without_spills(gpu: Any, figures: dict[str, Any]) -> None:
    """Registers suffice, shared memory too, and products are matrix instructions."""
    rows = figures[gpu.name]
    assert len(rows) == sum(listed.is_sample for listed in variants(gpu.capability))
    assert {name: row["faults"] for name, row in rows.items() if row["faults"]} == {}
    assert all(0 < row["registers"] <= 255 for row in rows.values())
    assert all(0 < row["roofline_share"] <= 1 for row in rows.values())


def test_every_kernel_and_head_size_is_compiled() -> None:
    """The list has each head size as decode and prefill, and a sample of each kernel."""
    for gpu in GPUS:
        listed = variants(gpu.capability)
        names = [each.variant.name for each in listed]
        assert len(names) == len(set(names))
        for head_dim in HEAD_DIMS:
            for kind in ("decode", "prefill"):
                assert f"attention_{kind}_bf16_d{head_dim}_b16" in names
        kernels = {each.variant.kernel.__name__ for each in listed}
        assert kernels == {each.variant.kernel.__name__ for each in listed if each.is_sample}


@pytest.mark.parametrize(
    ("gpu", "listed", "compiled", "fault"),
    [
        (A100, DECODE, FINE, []),
        (A100, DECODE, Compiled(255, 16, 0, {"mma.sync": 8}), ["16 bytes spilled"]),
        (A100, DECODE, LARGE, ["170000 bytes of shared memory"]),
        (H100, DECODE, LARGE, []),
        (H100, PREFILL, FINE, ["no wgmma.mma_async"]),
        (B200, PREFILL, FINE, ["no tcgen05.mma"]),
    ],
    ids=["fine", "spill", "shared", "shared-fits", "no-wgmma", "no-tcgen05"],
)  # fmt: skip
def test_a_fault_of_a_compiled_kernel_is_told(
    gpu: Any, listed: Any, compiled: Compiled, fault: list[str]
) -> None:
    """Spilled registers, too much shared memory, products by plain arithmetic."""
    assert faults(gpu, listed, compiled) == fault


def test_the_roofline_share_is_what_is_needed_over_what_is_done() -> None:
    """Twice the bytes halve it, and so do programs that leave half of the processors idle."""
    work = Work("", bytes_needed=1e9, bytes_moved=1e9, programs=132)
    assert reckon(H100, DECODE.variant, work, FINE).roofline_share == 1
    twice = Work("", bytes_needed=1e9, bytes_moved=2e9, programs=132)
    assert reckon(H100, DECODE.variant, twice, FINE).roofline_share == 0.5
    few = Work("", bytes_needed=1e9, bytes_moved=1e9, programs=66)
    assert reckon(H100, DECODE.variant, few, FINE).roofline_share == 0.5
    assert unevenness(133, 132) == 2 * 132 / 133


def test_blocks_of_a_processor_are_bounded_by_each_resource() -> None:
    """By registers, shared memory and warps, whichever is scarcest."""
    decode = DECODE.variant
    assert resident_blocks(A100, decode, Compiled(128, 0, 0, {})) == 4
    assert resident_blocks(A100, decode, Compiled(32, 0, 80_000, {})) == 2
    assert resident_blocks(A100, decode, Compiled(16, 0, 0, {})) == 16
