"""What the Triton kernels become on each GPU, without one: registers, memory, limits of speed.

Owns: the facts of the GPUs, the reckoning against their rooflines, the bars. Never knows: how to
compile (`compile`), or what there is to compile (`variants`).

The *roofline share* of a kernel is an upper limit that follows from its shape alone: the time that
the op needs at the least, by memory or by matrix products, over the time of what the kernel does,
by memory, products, exponentials or float64 additions, whichever takes longest, times how unevenly
its programs fill the processors. Latencies are left out. Nothing here was timed.
"""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scripts.bench.benchmarks.kernels.compile import WARP_SIZE, Compiled, Variant, compile_variant
from scripts.bench.benchmarks.kernels.variants import Listed, Work, variants
from scripts.bench.harness import report
from scripts.bench.harness.command import parser_of

REGISTERS = 65536  # of a processor, 32 bits each
WARPS = 64  # of a processor
SHARED_RESERVED = 1024  # of each block, by the driver
SPECIAL_PER_CLOCK = 16  # exponentials of a processor and clock
EXPECTED = {  # instructions that a product must have become: (decode, prefill)
    80: ("mma.sync", "mma.sync"),
    90: ("mma.sync", "wgmma.mma_async"),
    100: ("mma.sync", "tcgen05.mma"),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its data sheet: dense bfloat16 products, memory, processors.

    Clocks are those at which the peak of products is reached: peak / (processors * operations a
    clock, 2048, 4096 and 8192); additions in float64 are those of its peak without tensor cores.
    Shared memory is the most that one block may have (CUDA C++ programming guide, "compute
    capabilities").
    """

    name: str
    capability: int
    bytes_per_s: float
    flops_per_s: float
    processors: int
    clock_hz: float
    fp64_per_clock: int  # additions of a processor
    shared_bytes_max: int


# NVIDIA A100 (SXM, 80 GB), H100 (SXM) and B200 data sheets.
GPUS = (
    Gpu("A100", 80, 2.039e12, 312e12, 108, 1.41e9, 32, 163 * 1024),
    Gpu("H100", 90, 3.35e12, 989e12, 132, 1.83e9, 64, 227 * 1024),
    Gpu("B200", 100, 8.0e12, 2250e12, 148, 1.86e9, 64, 227 * 1024),
)


@dataclass(frozen=True, slots=True)
class Reckoned:
    """What a piece of work costs at the least, and what this kernel makes of it."""

    blocks_per_processor: int
    least_us: float
    expected_us: float
    roofline_share: float


def reckon(gpu: Gpu, variant: Variant, work: Work, compiled: Compiled) -> Reckoned:
    """Return the limits of one compiled kernel on one GPU."""
    least_s = max(work.bytes_needed / gpu.bytes_per_s, work.flops_needed / gpu.flops_per_s)
    clocks_per_s = gpu.processors * gpu.clock_hz
    busy_s = max(
        work.bytes_moved / gpu.bytes_per_s,
        work.flops_issued / gpu.flops_per_s,
        work.exponentials / (clocks_per_s * SPECIAL_PER_CLOCK),
        work.additions / (clocks_per_s * gpu.fp64_per_clock),
    )
    expected_s = busy_s * unevenness(work.programs, gpu.processors)
    return Reckoned(
        blocks_per_processor=resident_blocks(gpu, variant, compiled),
        least_us=round(least_s * 1e6, 2),
        expected_us=round(expected_s * 1e6, 2),
        roofline_share=round(least_s / expected_s, 3),
    )


def resident_blocks(gpu: Gpu, variant: Variant, compiled: Compiled) -> int:
    """Return how many blocks a processor holds at once."""
    threads = variant.num_warps * WARP_SIZE
    by_registers = REGISTERS // (max(compiled.registers, 1) * threads)
    by_shared = gpu.shared_bytes_max // (compiled.shared_bytes + SHARED_RESERVED)
    return max(1, min(by_registers, by_shared, WARPS // variant.num_warps))


def unevenness(programs: int, processors: int) -> float:
    """Return the time of all programs over the time if they filled every processor throughout.

    The blocks of a processor share it, so what counts is the most programs that one gets.
    """
    return math.ceil(programs / processors) * processors / programs


def faults(gpu: Gpu, listed: Listed, compiled: Compiled) -> list[str]:
    """Return what is wrong with a compiled kernel, nothing if all is well."""
    found = []
    if compiled.spill_bytes:
        found.append(f"{compiled.spill_bytes} bytes spilled")
    if compiled.shared_bytes > gpu.shared_bytes_max:
        found.append(f"{compiled.shared_bytes} bytes of shared memory")
    if listed.is_product:
        expected = EXPECTED[gpu.capability]["prefill" in listed.variant.name]
        if expected not in compiled.matrix_instructions:
            found.append(f"no {expected}")
    return found


def measure(gpus: Sequence[Gpu], *, samples_only: bool = False) -> dict[str, Any]:
    """Compile everything; return the figures, a group a GPU, and the totals that the bars hold."""
    figures: dict[str, Any] = {}
    totals = {"compiled": 0, "spilled": 0, "over_shared": 0, "without_products": 0}
    for gpu in gpus:
        figures[gpu.name] = {}
        for listed in variants(gpu.capability):
            if samples_only and not listed.is_sample:
                continue
            compiled = compile_variant(listed.variant, gpu.capability)
            wrong = faults(gpu, listed, compiled)
            totals["compiled"] += 1
            totals["spilled"] += compiled.spill_bytes > 0
            totals["over_shared"] += compiled.shared_bytes > gpu.shared_bytes_max
            totals["without_products"] += any(each.startswith("no ") for each in wrong)
            figures[gpu.name][listed.variant.name] = _row(gpu, listed, compiled, wrong)
    return figures | totals


def _row(gpu: Gpu, listed: Listed, compiled: Compiled, wrong: list[str]) -> dict[str, Any]:
    work, reckoned = listed.work, reckon(gpu, listed.variant, listed.work, compiled)
    return {
        **asdict(compiled),
        "work": work.says,
        "megabytes": round(work.bytes_moved / 1e6, 2),
        "gigaflops": round(work.flops_issued / 1e9, 2),
        **asdict(reckoned),
        "faults": wrong,
    }


def bars(count: int) -> tuple[report.Bar, ...]:
    """Return the bars: all compile, nothing spills, memory suffices, products are products."""
    zero = ("spilled", "over_shared", "without_products")
    return (
        report.Bar("compiled", ">=", count, "variants"),
        *(report.Bar(name, "<=", 0, "variants") for name in zero),
    )


def print_table(figures: dict[str, Any]) -> None:
    """Print a Markdown table a GPU."""
    for gpu in GPUS:
        rows = figures.get(gpu.name, {})
        print(f"\n### {gpu.name}, sm_{gpu.capability}\n")
        print("| kernel | registers | spilled | shared KiB | products | MB | GFLOP |", end="")
        print(" least µs | expected µs | share |")
        print("|---" * 10 + "|")
        for name, row in rows.items():
            products = ", ".join(f"{row['matrix_instructions'][each]} {each}"
                                 for each in row["matrix_instructions"]) or "–"  # fmt: skip
            print(
                f"| {name} | {row['registers']} | {row['spill_bytes']} |"
                f" {row['shared_bytes'] / 1024:.0f} | {products} | {row['megabytes']:.1f} |"
                f" {row['gigaflops']:.1f} | {row['least_us']:.1f} | {row['expected_us']:.1f} |"
                f" {row['roofline_share']:.2f} |"
            )


def main() -> int:
    """Run the command."""
    parser = parser_of("kernels", __doc__)
    parser.add_argument("--aot", action="store_true", help="compile ahead of time (all there is)")
    parser.add_argument("--samples", action="store_true", help="a few variants of each kernel only")
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/kernels")
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        print("kernels: TRITON_INTERPRET is set, nothing can be compiled", file=sys.stderr)
        return 2
    figures = measure(GPUS, samples_only=options.samples)
    if options.markdown:
        print_table(figures)
        return 0
    count = sum(options.samples <= each.is_sample for gpu in GPUS
                for each in variants(gpu.capability))  # fmt: skip
    return report.emit(report.build("kernels", figures, bars(count)), options.json)


if __name__ == "__main__":
    sys.exit(main())
