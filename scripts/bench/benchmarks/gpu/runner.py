"""ModelRunner on a GPU: the tokens of the CPU's kernels, and the speed of decode and prefill.

Owns: what is run, and the floors it is held against. Never knows: kernels one by one
(`kernels`), or how figures are printed.

The floor of a decode is the time to read every weight and every key and value once; a prefill is
held against the rate of one large matrix product.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from core.executor.backend import Backend, CpuBackend
from core.executor.gpu.backend import TritonBackend
from core.executor.gpu.decode_graphs import CudaCapture, buckets
from core.kernels.selection import Kernels
from core.kernels.triton.kernel_set import TritonKernels
from core.models.decoder_config import DecoderConfig
from core.scheduler.plan import PlanFlag
from scripts.bench.benchmarks.gpu.model import (
    BLOCK_SIZE,
    LLAMA_3_8B,
    TOY,
    Streams,
    make_model,
    make_pool,
    make_rows,
)

CPU = torch.device("cpu")
BATCH, CONTEXT, STEPS, WARM_UP = 64, 1024, 64, 8
PREFILL = 2048
ROWS, PROMPT, TOKENS = 3, 40, 6
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9, "seed": 5, "top_k": 30, "top_p": 0.9},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "num_logprobs": 2},
)


def correctness(device: torch.device, config: DecoderConfig = TOY) -> dict[str, Any]:
    """Return how many tokens differ from the CPU's, and how far log-probabilities are off."""
    differ, worst = 0, 0.0
    for options in OPTIONS:
        tokens, logprobs = _serve(gpu_backend(config, device), options)
        expected, expected_logprobs = _serve(cpu_backend(config), options)
        differ += int(np.count_nonzero(tokens != expected))
        both = np.nan_to_num(logprobs), np.nan_to_num(expected_logprobs)
        worst = max(worst, float(np.abs(both[0] - both[1]).max()))
    return {"tokens_that_differ": differ, "logprob_error": worst}


def cpu_backend(config: DecoderConfig) -> CpuBackend:
    """Return plain torch on the CPU, float32."""
    kernels = Kernels(None, torch.float32)
    model = make_model(config, kernels, CPU)
    return CpuBackend(model, make_pool(model, 64, torch.float32, CPU), kernels.choice())


def gpu_backend(config: DecoderConfig, device: torch.device) -> TritonBackend:
    """Return the same weights on the device; its decodes are recorded if it can."""
    kernels = TritonKernels(device, torch.float32)
    model = make_model(config, kernels, CPU)
    pool = make_pool(model, 64, torch.float32, device)
    backend = TritonBackend(
        model, pool, num_rows=ROWS, max_blocks=-(-config.max_position // BLOCK_SIZE)
    )
    if device.type == "cuda":
        backend.record_decodes(buckets(ROWS, config.max_position), CudaCapture())
    return backend


def _serve(backend: Backend, options: dict[str, Any]) -> tuple[Any, Any]:
    """Serve prompts in uneven chunks, then decode; return tokens and logprobs [steps, rows]."""
    rows = make_rows(ROWS, backend.model.config)
    streams = Streams(backend, rows, context=PROMPT, room=TOKENS, **options)
    collect, chunks = streams.runner.collect, [17, 1, 33]
    collect(streams.launch([0] * ROWS, chunks, PlanFlag(0)))
    rest = [PROMPT - chunk for chunk in chunks]
    results = [collect(streams.launch(chunks, rest, PlanFlag.SAMPLE))[0]]
    for index in range(TOKENS - 1):
        position = PROMPT + index
        flags = PlanFlag.SAMPLE | PlanFlag.FEEDBACK
        step = streams.launch([position] * ROWS, [1] * ROWS, flags)
        streams.write(position, results[-1]["token_id"])
        results.append(collect(step)[0])
    tokens, logprobs = (
        np.stack([result[name] for result in results]) for name in ("token_id", "logprob")
    )
    return tokens, logprobs


def speed(device: torch.device, read_gb_s: float, tflop_s: float) -> dict[str, Any]:
    """Return the speed of Llama-3-8B's shapes in bfloat16 against the two ceilings."""
    kernels = TritonKernels(device, torch.bfloat16)
    model = make_model(LLAMA_3_8B, kernels, device)
    blocks = BATCH * -(-(CONTEXT + STEPS + WARM_UP) // BLOCK_SIZE)
    pool = make_pool(model, blocks, torch.bfloat16, device)
    rows = make_rows(BATCH, LLAMA_3_8B)
    backend = TritonBackend(
        model, pool, num_rows=BATCH, max_blocks=rows.dtype["block_table"].shape[0]
    )
    recorded_s = _seconds(
        lambda: backend.record_decodes(buckets(BATCH, LLAMA_3_8B.max_position), CudaCapture())
    )
    return {
        "weights_gb": model.weights.num_bytes / 1e9,
        "recording_s": recorded_s,
        "decode": _decode(backend, read_gb_s),
        "prefill": _prefill(backend, tflop_s),
    }


def _decode(backend: TritonBackend, read_gb_s: float) -> dict[str, Any]:
    """Time decodes of a full batch, one step ahead of what is known."""
    model = backend.model
    streams = Streams(backend, make_rows(BATCH, model.config), CONTEXT, STEPS + WARM_UP)
    runner = streams.runner
    running = streams.decode()
    times = []
    for _ in range(STEPS + WARM_UP - 1):
        began = time.perf_counter()
        following = streams.decode()
        runner.collect(running)
        running = following
        times.append(time.perf_counter() - began)
    runner.collect(running)
    step_s = float(np.median(times[WARM_UP:]))
    kv_bytes = BATCH * CONTEXT * 2 * model.config.kv_size * 2 * model.config.num_layers
    embedding_bytes = model.weights.embedding.num_bytes
    floor_s = (model.weights.num_bytes - embedding_bytes + kv_bytes) / read_gb_s / 1e9
    return {
        "batch": BATCH,
        "context": CONTEXT,
        "step_ms": step_s * 1e3,
        "tokens_s": BATCH / step_s,
        "floor_ms": floor_s * 1e3,
        "floor_share": floor_s / step_s,
    }


def _prefill(backend: TritonBackend, tflop_s: float) -> dict[str, Any]:
    """Time prompts of one chunk each."""
    config = backend.model.config
    streams = Streams(backend, make_rows(1, config), PREFILL, 1)

    def run() -> None:
        streams.runner.collect(streams.launch([0], [PREFILL], PlanFlag.SAMPLE))

    step_s = min(_seconds(run) for _ in range(6))
    width = config.hidden_size * (config.q_size * 2 + 2 * config.kv_size)
    width += 3 * config.hidden_size * config.intermediate_size
    attention = 2 * PREFILL * PREFILL * config.q_size  # causal: half of all pairs, two products
    flops = config.num_layers * (2 * PREFILL * width + attention)
    return {
        "tokens": PREFILL,
        "step_ms": step_s * 1e3,
        "tflop_s": flops / step_s / 1e12,
        "matmul_share": flops / step_s / 1e12 / tflop_s,
    }


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - began
