"""The section `engine` of the configuration: the model, its executors, and the size of a step.

Owns: its keys, their docstrings with units, and what they may be. Never knows: files, who reads it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from core.settings.checks import in_range, one_of

MAX_REPLICAS = 8
MAX_RANKS = 8
MAX_MODEL_LEN_LIMIT = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Model, executors and the size of a step."""

    model: str = "smollm2-135m"
    """Known alias, or a Hugging Face directory (config.json, safetensors, tokenizer.json)."""
    served_model_name: str = ""
    """Name clients use; empty = the last part of `model`."""
    executor: str = "local"
    """`local` runs the model, `simulated` draws token ids from a hash at a modelled speed."""
    device: str = "cpu"
    """`cpu`, `cuda` (a GPU for each executor), or `auto`: a GPU where one can do what is asked."""
    dtype: str = "bfloat16"
    """Weights, activations and KV: `bfloat16` or `float32`."""
    quantization: str = "none"
    """Weights of products: `none` (as `dtype`), `int8`, or `int4` where they were in 4 bits."""
    replicas: int = 1
    """Copies of the model, each with its own KV pool."""
    tensor_parallel: int = 1
    """Executor processes that compute a replica together; no more than the model has KV heads."""
    threads: int = 0
    """Compute threads of an executor; 0 = cores of this machine divided among the executors."""
    max_model_len: int = 8192
    """Largest prompt + max_tokens, tokens; executor `local` lowers it to the model's own limit."""
    max_num_seqs: int = 64
    """Sequences running at once in a replica."""
    max_num_batched_tokens: int = 192
    """Tokens computed in a step of a replica, at the most."""
    max_num_partial_prefills: int = 4
    """Prompts being prefilled in chunks at the same time; with one token left they do not count."""
    block_size: int = 32
    """Tokens in a KV block."""
    num_kv_blocks: int = 0
    """KV blocks of a replica; 0 = from the memory that is free at start."""
    kv_memory_fraction: float = 0.35
    """Share of the memory left after the weights that auto-sizing gives to all KV pools."""
    kv_memory_limit_bytes: int = 2_147_483_648
    """Upper bound of auto-sizing for one replica's KV pool, bytes."""
    prefix_cache: bool = True
    """Reuse KV blocks of equal prefixes within a tenant."""
    swap_memory_bytes: int = 268_435_456
    """Host memory of a replica for the KV blocks of preempted requests, bytes; 0 = never swap."""
    pipeline_depth: int = 1
    """Plans an executor may hold: 1, or 2 to plan step n+1 while step n runs."""
    simulated_step_us: int = 2000
    """Simulated executor: fixed time of a step, µs."""
    simulated_token_us: float = 1.0
    """Simulated executor: time of each token in a step, µs."""

    @property
    def max_copies(self) -> int:
        """KV blocks that one plan may copy: a longest sequence goes out, another comes in."""
        return 2 * -(-self.max_model_len // self.block_size)

    @property
    def num_executors(self) -> int:
        """Executor processes of all replicas."""
        return self.replicas * self.tensor_parallel

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        yield from one_of("engine.executor", self.executor, ("local", "simulated"))
        yield from one_of("engine.device", self.device, ("auto", "cpu", "cuda"))
        yield from one_of("engine.dtype", self.dtype, ("bfloat16", "float32"))
        yield from one_of("engine.quantization", self.quantization, ("none", "int8", "int4"))
        yield from in_range("engine.replicas", self.replicas, 1, MAX_REPLICAS)
        yield from in_range("engine.tensor_parallel", self.tensor_parallel, 1, MAX_RANKS)
        yield from in_range("engine.threads", self.threads, 0, 1024)
        yield from in_range("engine.max_model_len", self.max_model_len, 16, MAX_MODEL_LEN_LIMIT)
        yield from in_range("engine.max_num_seqs", self.max_num_seqs, 1, 4096)
        yield from in_range("engine.max_num_batched_tokens", self.max_num_batched_tokens, 1, 65536)
        yield from in_range("engine.max_num_partial_prefills", self.max_num_partial_prefills, 1, 64)
        yield from in_range("engine.block_size", self.block_size, 8, 256)
        if self.block_size & (self.block_size - 1):
            yield f"engine.block_size = {self.block_size} is not a power of two"
        yield from in_range("engine.num_kv_blocks", self.num_kv_blocks, 0, 2**24)
        yield from in_range("engine.kv_memory_fraction", self.kv_memory_fraction, 0.01, 0.95)
        yield from in_range(
            "engine.kv_memory_limit_bytes", self.kv_memory_limit_bytes, 2**20, 2**42
        )
        yield from in_range("engine.swap_memory_bytes", self.swap_memory_bytes, 0, 2**42)
        yield from in_range("engine.pipeline_depth", self.pipeline_depth, 1, 2)
        yield from in_range("engine.simulated_step_us", self.simulated_step_us, 0, 60_000_000)
        yield from in_range("engine.simulated_token_us", self.simulated_token_us, 0, 1_000_000)
        if self.max_num_seqs > self.max_num_batched_tokens:
            yield (
                f"engine.max_num_seqs = {self.max_num_seqs} exceeds engine.max_num_batched_tokens ="
                f" {self.max_num_batched_tokens}: every running sequence needs a token of the step"
            )
