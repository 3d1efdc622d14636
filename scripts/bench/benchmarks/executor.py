"""What a step costs in each format of weights, at best, and what precision the format keeps.

Owns: decode and prefill steps of the model alone, in this process, without an engine; the
perplexity of a fixed text. Never knows: scheduling or sampling. The limits are measured in the
same run: memory read by all threads, and the machine's best matrix product in bfloat16.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from core.executor.threads import available_cores, openmp_environment
from core.kernels.matrix import QUANTIZATIONS
from core.kernels.native import load_native
from core.kernels.paged_attention import AttentionBatch
from core.kernels.selection import Kernels
from core.models.decoder import Decoder
from core.models.decoder_weights import load_weights
from core.models.model_config import read_model_config
from core.models.registry import models_directory, resolve
from core.user_directories import cache_directory
from scripts.bench.harness import report
from scripts.bench.harness.command import parser_of

PROSE = report.ROOT / "tests" / "support" / "models" / "prose.txt"
BLOCK_SIZE = 32
POSITIONS = 4096
CONTEXT = 192  # tokens before a decode
WINDOW = 1024  # of a text, tokens
STEPS = {"decode_1": (1, 1), "decode_8": (8, 1), "decode_32": (32, 1), "prefill_512": (1, 512)}
LIMITS = {"int8": 1.01, "int4": 1.04}
BARS = tuple(
    report.Bar(f"{name}.perplexity_ratio", "<=", limit, "of bfloat16")
    for name, limit in LIMITS.items()
)


class Bench:
    """A loaded model with caches of its own."""

    def __init__(self, directory: Path, kernels: Kernels) -> None:
        config = read_model_config(directory)
        weights = load_weights(directory, config, kernels)
        self.model = Decoder(
            config, weights, kernels, block_size=BLOCK_SIZE, num_positions=POSITIONS
        )
        self._num_blocks = 32 * -(-(CONTEXT + 1) // BLOCK_SIZE)
        shape = self.model.attention_shape.cache_shape(self._num_blocks)
        self._caches = [torch.zeros(shape, dtype=kernels.dtype) for _ in range(config.num_layers)]

    def step(self, sequences: int, tokens: int, context: int) -> Callable[[], torch.Tensor]:
        """Return a step of `tokens` for each of `sequences` after `context`, up to the logits."""
        blocks = -(-(context + tokens) // BLOCK_SIZE)
        order = np.random.default_rng(0).permutation(self._num_blocks)[: sequences * blocks]
        count = np.arange(sequences, dtype=np.int32)
        batch = AttentionBatch(
            first_token=count * tokens,
            num_tokens=np.full(sequences, tokens, np.int32),
            first_position=np.full(sequences, context, np.int32),
            block_tables=order.astype(np.int32).reshape(sequences, blocks),
        )
        ids = torch.arange(sequences * tokens, dtype=torch.int32) % 1000

        def run() -> torch.Tensor:
            hidden = self.model.forward(ids, batch, self._caches)
            return self.model.logits(hidden[tokens - 1 :: tokens].contiguous())

        return run

    def perplexity(self, token_ids: list[int]) -> float:
        """Return e to the mean negative log-likelihood of each id after those before it.

        The text is read in windows of `WINDOW` tokens, each without those before.
        """
        windows = [token_ids[at : at + WINDOW] for at in range(0, len(token_ids), WINDOW)]
        windows = [window for window in windows if len(window) > 1]
        total = sum(map(self._surprise, windows))
        return math.exp(total / (len(token_ids) - len(windows)))

    def _surprise(self, token_ids: list[int]) -> float:
        """Return the summed negative log-likelihood of all but the first id."""
        count = len(token_ids)
        blocks = np.arange(-(-count // BLOCK_SIZE), dtype=np.int32).reshape(1, -1)
        zero = np.zeros(1, np.int32)
        batch = AttentionBatch(zero, np.array([count], np.int32), zero, blocks)
        ids = torch.tensor(token_ids, dtype=torch.int32)
        hidden = self.model.forward(ids, batch, self._caches)
        logits = self.model.logits(hidden[:-1].contiguous())
        return torch.nn.functional.cross_entropy(logits, ids[1:].long(), reduction="sum").item()


def prose_ids(directory: Path) -> list[int]:
    """Return the fixed text as ids of the model in `directory`."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(PROSE.read_text(encoding="utf-8")).ids
    return ids


@dataclass(frozen=True, slots=True)
class Best:
    """The least that any run of something took, ms: other load only lengthens it.

    `cpu_ms` is processor time of all threads, waiting ones included. On a busy machine it is the
    better figure, and with one thread it is the time that a step would take on a free one.
    """

    wall_ms: float
    cpu_ms: float


def best_of(run: Callable[[], object], seconds: float) -> Best:
    """Return the least times of `run` within `seconds`."""
    wall = cpu = math.inf
    until = time.perf_counter() + seconds
    while wall == math.inf or time.perf_counter() < until:
        start, cpu_start = time.perf_counter(), time.process_time()
        run()
        cpu = min(cpu, time.process_time() - cpu_start)
        wall = min(wall, time.perf_counter() - start)
    return Best(wall * 1e3, cpu * 1e3)


def machine_limits(seconds: float) -> dict[str, float]:
    """Return what this machine reads from memory, GB/s, and multiplies in bfloat16, GFLOP/s."""
    data = torch.ones(2**26)
    read_ms = best_of(lambda: data.sum(), seconds).wall_ms
    square = torch.ones(2048, 2048, dtype=torch.bfloat16)
    product_ms = best_of(lambda: square @ square, seconds).wall_ms
    return {
        "read_gb_s": data.nbytes / read_ms / 1e6,
        "bf16_gflop_s": 2 * 2048**3 / product_ms / 1e6,
    }


def measure(directory: Path, quantization: str, library: Any, seconds: float) -> dict[str, Any]:
    """Return size, step times and perplexity with weights in one format."""
    kernels = Kernels(library, torch.bfloat16, QUANTIZATIONS[quantization])
    bench = Bench(directory, kernels)
    best = {
        name: best_of(bench.step(sequences, tokens, CONTEXT if tokens == 1 else 0), seconds)
        for name, (sequences, tokens) in STEPS.items()
    }
    times = {name: each.wall_ms for name, each in best.items()}
    return {
        "weights_mb": bench.model.weights.num_bytes / 1e6,
        "step_ms": times,
        "step_cpu_ms": {name: each.cpu_ms for name, each in best.items()},
        "read_gb_s": {"decode_1": bench.model.weights.num_bytes / times["decode_1"] / 1e6},
        "tokens_s": {
            name: sequences * tokens / times[name] * 1e3
            for name, (sequences, tokens) in STEPS.items()
        },
        "perplexity": bench.perplexity(prose_ids(directory)),
    }


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the machine, then every format in turn."""
    directory = resolve(args.model, models_directory(os.environ)).path
    torch.set_num_threads(args.threads)
    library = load_native(cache_directory(os.environ) / "kernels")
    if library is None:
        raise RuntimeError("the C++ kernels cannot be built here")
    with torch.inference_mode():
        figures: dict[str, Any] = {"machine": machine_limits(args.seconds)}
        for name in QUANTIZATIONS:
            figures[name] = measure(Path(directory), name, library, args.seconds)
        if args.plain:
            figures["plain"] = measure(Path(directory), "none", None, args.seconds)
            figures["plain"]["times_as_long"] = times_as_long(figures)
    for name in LIMITS:
        ratio = figures[name]["perplexity"] / figures["none"]["perplexity"]
        figures[name]["perplexity_ratio"] = ratio
    return report.build("executor", figures, BARS, command=sys.argv[1:])


def times_as_long(figures: dict[str, Any]) -> dict[str, float]:
    """Return how many times as long each step takes without the C++ kernels."""
    fast, plain = figures["none"]["step_ms"], figures["plain"]["step_ms"]
    return {name: plain[name] / fast[name] for name in STEPS}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("executor", __doc__)
    add = parse.add_argument
    add("--model", default="smollm2-135m", help="model alias or directory")
    add("--threads", type=int, default=available_cores(), help="compute threads")
    add("--seconds", type=float, default=2.0, help="time for each step that is measured")
    add("--plain", action="store_true", help="also without the C++ kernels, in bfloat16")
    return parse


def main() -> int:
    """Run the command line, in a process whose threads are placed as an executor's are."""
    args = parser().parse_args()
    environment = openmp_environment(args.threads)
    if any(os.environ.get(name) != value for name, value in environment.items()):
        command = [sys.executable, "-m", "scripts.bench.benchmarks.executor", *sys.argv[1:]]
        # Once its threads are placed, a process counts the cores of its first thread only.
        command += ["--threads", str(args.threads)]
        os.execve(sys.executable, command, os.environ | environment)
    return report.run("executor", lambda: run(args), args.json)


if __name__ == "__main__":
    sys.exit(main())
