"""Kernels and ModelRunner on a GPU in one run of a few minutes: right, and how near the limits.

Owns: the order of the parts and the bars. Never knows: engines, processes or configuration: all of
it runs from a bare checkout, in this process. `--interpret` runs what needs no GPU, correctness
alone, by Triton's interpreter.
"""

import os
import sys
from typing import Any

import torch

from scripts.bench.benchmarks.gpu import kernels, runner
from scripts.bench.harness import report
from scripts.bench.harness.command import parser_of

INTERPRET = "--interpret"
ENVIRONMENT = {"TRITON_DEFAULT_FP_FUSION": "1"}  # as the kernels are compiled and proved


def bars(has_gpu: bool) -> tuple[tuple[str, str, float, str], ...]:
    """Return (figure, relation, limit, unit): what must hold."""
    right = (
        ("kernels.failed", "<=", 0, "kernels beyond their tolerance"),
        ("runner.tokens_that_differ", "<=", 0, "tokens"),
        ("runner.logprob_error", "<=", 1e-3, "nats"),
    )
    fast = (
        ("llama_3_8b.decode.floor_share", ">=", 0.60, "of the bandwidth floor"),
        ("llama_3_8b.prefill.matmul_share", ">=", 0.55, "of the measured matmul rate"),
    )
    return (*right, *fast) if has_gpu else right


def measure(interpret: bool) -> dict[str, Any]:
    """Return all figures; without a GPU those of correctness."""
    if not interpret and not torch.cuda.is_available():
        raise RuntimeError(
            f"torch {torch.__version__} finds no GPU; {INTERPRET} runs the part that needs none"
        )
    device = torch.device("cpu" if interpret else "cuda")
    figures: dict[str, Any] = {"device": "interpreter" if interpret else _name()}
    with torch.inference_mode():
        figures["kernels"] = kernels.correctness(device)
        figures["runner"] = runner.correctness(device)
        if interpret:
            return figures | {"not_measured": "speed: there is no GPU"}
        ceilings = kernels.ceilings()
        limits = ceilings["read_gb_s"], ceilings["bf16_tflop_s"]
        figures["ceilings"] = ceilings
        figures["kernel_speed"] = kernels.speed(*limits)
        figures["llama_3_8b"] = runner.speed(device, *limits)
    return figures


def _name() -> str:
    free, total = torch.cuda.mem_get_info()
    return f"{torch.cuda.get_device_name()}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"


def main() -> int:
    """Run the command line."""
    parse = parser_of("gpu", __doc__)
    parse.add_argument(INTERPRET, action="store_true", help="correctness at toy sizes, no GPU")
    options = parse.parse_args()
    wanted = ENVIRONMENT | {"TRITON_INTERPRET": "1" if options.interpret else "0"}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        # Triton has looked at its environment when it was imported.
        command = [sys.executable, "-m", "scripts.bench.benchmarks.gpu", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | wanted)
    try:
        figures = measure(options.interpret)
    except RuntimeError as error:
        print(f"gpu: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    held = [report.Bar(*bar) for bar in bars(not options.interpret)]
    return report.emit(report.build("gpu", figures, held, command=sys.argv[1:]), options.json)


if __name__ == "__main__":
    sys.exit(main())
