"""Triton kernels on a GPU, one by one: against their references, and against the two ceilings.

Owns: the cases and the bytes or operations of each. Never knows: models. Correctness runs at sizes
that an interpreter gets through, speed at those of Llama 3 8B.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.executor.philox import uniforms
from core.kernels.choice import DrawRules, TorchChoice, min_p_floor
from core.kernels.linear import rms_norm as torch_rms_norm
from core.kernels.paged_attention import AttentionBatch, AttentionShape, TorchPagedAttention
from core.kernels.triton.block_copy import BlockCopy, torch_copy_blocks
from core.kernels.triton.choice import DrawTensors, choose
from core.kernels.triton.gated_activation import gated_activation, torch_gated_activation
from core.kernels.triton.logprobs import token_logprobs, torch_token_logprobs
from core.kernels.triton.paged_attention import TritonPagedAttention
from core.kernels.triton.rms_norm import add_rms_norm, rms_norm
from scripts.bench.harness import report

TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 3e-2}
BATCH, CONTEXT, PROMPT = 64, 4096, 4096
HIDDEN, INTERMEDIATE, VOCABULARY, LAYERS = 4096, 14336, 128256, 32
SHAPE = AttentionShape(32, 8, 128, 32)
SMALL = AttentionShape(4, 2, 64, 16)


def correctness(device: torch.device) -> dict[str, Any]:
    """Return the largest error of each kernel, in shares of its tolerance."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    x, norm = torch.randn(5, 576).to(dtype), torch.rand(576)
    stream, logits = torch.randn(5, 576).to(dtype), 3 * torch.randn(4, 1500)
    on = {
        name: tensor.to(device)
        for name, tensor in {"x": x, "norm": norm, "stream": stream, "logits": logits}.items()
    }
    ids = torch.tensor([[3], [9], [1499], [0]], dtype=torch.int32)
    pairs = {
        "rms_norm": (rms_norm(on["x"], on["norm"], 1e-5), torch_rms_norm(x, norm, 1e-5)),
        "add_rms_norm": (
            add_rms_norm(on["x"], on["stream"].clone(), on["norm"], 1e-5),
            torch_rms_norm((x.float() + stream.float()).to(dtype), norm, 1e-5),
        ),
        "gated_activation": (gated_activation(on["x"]), torch_gated_activation(x)),
        "token_logprobs": (
            token_logprobs(on["logits"], ids.to(device)), torch_token_logprobs(logits, ids),
        ),
        "paged_attention": _attention_pair(device, dtype),
        "block_copy": _copy_pair(device),
    }  # fmt: skip
    errors = {name: _error(*pair) / TOLERANCE[dtype] for name, pair in pairs.items()}
    errors["choose"] = 2.0 * _draws_that_differ(logits, device)  # not one may
    return {"error_by_tolerance": errors, "failed": report.num_beyond(errors.values())}


def _error(ours: Tensor, reference: Tensor) -> float:
    scale = reference.float().abs().clamp(min=1.0)
    return float(((ours.cpu().float() - reference.float()).abs() / scale).max())


def _attention_pair(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A prompt beyond one part of keys, then a chunk beside a decode in parts."""
    angles = torch.arange(1024).unsqueeze(1) / 100.0 ** (torch.arange(32) / 64)
    table = torch.cat((angles.cos(), angles.sin()), dim=1).contiguous()
    made = []
    for place, kind in ((device, TritonPagedAttention), (torch.device("cpu"), TorchPagedAttention)):
        generator, results = torch.Generator().manual_seed(1), []
        attention = kind(SMALL, table.to(place))
        cache = torch.zeros(SMALL.cache_shape(80), dtype=dtype).to(place)
        for batch in (_batch([520], [0], SMALL), _batch([1, 9], [520, 0], SMALL)):
            rows = torch.randn(batch.total_tokens, SMALL.qkv_size, generator=generator)
            attention.begin(batch)
            results.append(attention(rows.to(dtype).to(place), cache).cpu())
        made.append(torch.cat(results))
    return made[0], made[1]


def _batch(counts: list[int], positions: list[int], shape: AttentionShape) -> AttentionBatch:
    """Return sequences with blocks of their own, one after the other."""
    num_tokens = np.array(counts, np.int32)
    first_position = np.array(positions, np.int32)
    blocks = -(-int((first_position + num_tokens).max()) // shape.block_size)
    tables = np.arange(len(counts) * blocks, dtype=np.int32).reshape(-1, blocks)
    first_token = (np.cumsum(num_tokens) - num_tokens).astype(np.int32)
    return AttentionBatch(first_token, num_tokens, first_position, tables)


def _copy_pair(device: torch.device) -> tuple[Tensor, Tensor]:
    origin, goal = torch.randn(2, 6, 64), torch.zeros(2, 6, 64)
    source, target = (torch.tensor(each, dtype=torch.int32) for each in ([5, 0, 2], [1, 3, 4]))
    ours = [layer.clone() for layer in goal.to(device)]
    BlockCopy(list(origin.to(device)), ours, str(device))(source.to(device), target.to(device))
    torch_copy_blocks(list(origin), list(goal), source, target)
    return torch.stack(ours), goal


def _draws_that_differ(logits: Tensor, device: torch.device) -> int:
    """Return how many tokens are not those of the reference, of rows drawn in every way."""
    temperature, top_p, min_p = np.array(
        [[0.7, 1.0, 1.5, 0.9], [1.0, 1.0, 0.6, 0.9], [0.0, 0.0, 0.0, 0.1]], np.float32
    )
    top_k = np.array([0, 7, 0, 40], np.int32)
    seeds = np.arange(4, dtype=np.uint64)
    choice, index = np.zeros(4, np.int32), np.arange(4, dtype=np.int32)
    uniform = uniforms(seeds, choice, index)
    expected = TorchChoice().draw(logits, DrawRules(temperature, top_k, top_p, min_p, uniform))
    arrays = (temperature, top_k, top_p, min_p_floor(min_p), seeds.view(np.int64), choice, index)
    rules = DrawTensors(*(torch.from_numpy(array).to(device) for array in arrays))
    drawn = choose(logits.to(device), rules)[0].cpu().numpy()
    return int(np.count_nonzero(drawn != expected))


def ceilings() -> dict[str, float]:
    """Return what this GPU reads from memory, GB/s, and multiplies in bfloat16, TFLOP/s."""
    data = torch.ones(2**30, dtype=torch.float32, device="cuda")
    square = torch.randn(8192, 8192, device="cuda").to(torch.bfloat16)
    return {
        "read_gb_s": data.nbytes / milliseconds(data.sum) / 1e6,
        "bf16_tflop_s": 2 * 8192**3 / milliseconds(lambda: square @ square) / 1e9,
    }


def speed(read_gb_s: float, tflop_s: float) -> dict[str, Any]:
    """Return the time of each kernel, and its share of the ceiling that binds it."""
    bf16 = {"dtype": torch.bfloat16, "device": "cuda"}
    x = torch.randn(PROMPT, HIDDEN, **bf16)  # type: ignore[call-overload]
    gate_up = torch.randn(PROMPT, 2 * INTERMEDIATE, **bf16)  # type: ignore[call-overload]
    norm = torch.rand(HIDDEN, device="cuda")
    logits = 3 * torch.randn(BATCH, VOCABULARY, device="cuda")
    ids = torch.zeros(BATCH, 1, dtype=torch.int32, device="cuda")
    by_bytes: dict[str, tuple[Callable[[], object], int]] = {
        "rms_norm": (lambda: rms_norm(x, norm, 1e-5), 2 * x.nbytes),
        "gated_activation": (lambda: gated_activation(gate_up), gate_up.nbytes * 3 // 2),
        "token_logprobs": (lambda: token_logprobs(logits, ids), logits.nbytes),
        "choose_greedy": (lambda: choose(logits, _rules(0.0, 0, 1.0)), logits.nbytes),
        "choose_top_k_top_p": (lambda: choose(logits, _rules(1.0, 40, 0.9)), logits.nbytes),
        "attention_decode": _decode_case(),
    }
    figures = {
        name: _share(run, size / read_gb_s / 1e6, "read") for name, (run, size) in by_bytes.items()
    }
    prefill, flops = _prefill_case()
    figures["attention_prefill"] = _share(prefill, flops / tflop_s / 1e9, "matmul")
    return figures


def _share(run: Callable[[], object], floor_ms: float, ceiling: str) -> dict[str, float]:
    taken_ms = milliseconds(run)
    return {"us": taken_ms * 1e3, f"{ceiling}_share": floor_ms / taken_ms}


def _rules(temperature: float, top_k: int, top_p: float) -> DrawTensors:
    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((BATCH,), value, dtype=dtype, device="cuda")

    zeros = column(0, torch.int32)
    return DrawTensors(
        temperature=column(temperature, torch.float32),
        top_k=column(top_k, torch.int32),
        top_p=column(top_p, torch.float32),
        floor=column(-math.inf, torch.float32),
        seed=column(1, torch.int64),
        choice=zeros,
        output_index=zeros,
    )


def _attention_case(batch: AttentionBatch) -> Callable[[], object]:
    """Return a layer's attention over a step, with what `begin` does done."""
    table = torch.zeros(CONTEXT + PROMPT, SHAPE.head_dim, device="cuda")
    attention = TritonPagedAttention(SHAPE, table)
    cache = torch.randn(SHAPE.cache_shape(batch.block_tables.size), device="cuda")
    cache = cache.to(torch.bfloat16)
    qkv = torch.randn(batch.total_tokens, SHAPE.qkv_size, device="cuda").to(torch.bfloat16)
    attention.begin(batch)
    return lambda: attention(qkv, cache)


def _decode_case() -> tuple[Callable[[], object], int]:
    batch = _batch([1] * BATCH, [CONTEXT - 1] * BATCH, SHAPE)
    keys_and_values = 2 * SHAPE.num_kv_heads * SHAPE.head_dim
    return _attention_case(batch), BATCH * CONTEXT * keys_and_values * 2


def _prefill_case() -> tuple[Callable[[], object], int]:
    flops = 2 * PROMPT * PROMPT * SHAPE.num_heads * SHAPE.head_dim  # causal: half of all pairs
    return _attention_case(_batch([PROMPT], [0], SHAPE)), flops


def milliseconds(run: Callable[[], object], runs: int = 20) -> float:
    """Return the shortest time of `run` on the device, ms, after some runs to warm up."""
    times = []
    for index in range(3 + runs):
        begin, end = (_event() for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if index >= 3:
            times.append(float(begin.elapsed_time(end)))
    return min(times)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
