"""The metrics that vLLM has too: its names, labels (`model_name`, `engine`) and buckets, so that
boards and tools made for it work here.

Owns: these families and which page fields they show. Never knows: who scrapes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from core.config.headrace import HeadraceConfig
from core.request import FINISH_REASONS, FinishReason
from frontends.boards import Boards
from frontends.metrics.exposition import Exposition, Labels
from frontends.metrics.replicas import replicas_of
from frontends.metrics.shown import (
    Shown,
    ShownHistogram,
    add_fields,
    add_histograms,
    counter,
    gauge,
    histogram,
)
from ipc.pages import (
    CHOICE_BUCKETS,
    ITL_BUCKETS_S,
    LATENCY_BUCKETS_S,
    STEP_TOKEN_BUCKETS,
    TOKEN_BUCKETS,
    TTFT_BUCKETS_S,
)

VLLM = ("model_name", "engine")

SCHEDULER = (
    Shown(gauge("vllm:num_requests_running", "Requests being computed.", *VLLM), "num_running"),
    Shown(
        counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache.", *VLLM),
        "prefix_queries_tokens",
    ),
    Shown(
        counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache.", *VLLM),
        "prefix_hits_tokens",
    ),
    Shown(counter("vllm:num_preemptions_total", "Preempted requests.", *VLLM), "preemptions"),
    Shown(counter("vllm:prompt_tokens_total", "Prompt tokens.", *VLLM), "prompt_tokens"),
    Shown(counter("vllm:generation_tokens_total", "Generated tokens.", *VLLM), "generated_tokens"),
)
NUM_WAITING = gauge(
    "vllm:num_requests_waiting", "Requests that wait, preempted ones included.", *VLLM
)
KV_USAGE = gauge("vllm:kv_cache_usage_perc", "Share of all KV blocks in use, 0 to 1.", *VLLM)
REQUEST_SUCCESS = counter(
    "vllm:request_success_total", "Requests that ended, by reason.", *VLLM, "finished_reason"
)
CACHE_CONFIG = gauge(
    "vllm:cache_config_info",
    "Configuration of the KV cache; always 1.",
    *VLLM,
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "num_gpu_blocks",
    "num_cpu_blocks",
)


def shown(
    name: str, text: str, field: str, bounds: tuple[float, ...] = LATENCY_BUCKETS_S
) -> ShownHistogram:
    """Return a histogram with vLLM's labels."""
    return ShownHistogram(histogram(f"vllm:{name}", text, *VLLM), field, bounds)


SCHEDULER_HISTOGRAMS = (
    shown("request_queue_time_seconds", "Time in the queue before the start.", "queue_time"),
    shown("request_prefill_time_seconds", "From start to first token.", "prefill_time"),
    shown("request_decode_time_seconds", "From first to last token.", "decode_time"),
    shown("request_inference_time_seconds", "From start to last token.", "inference_time"),
    shown(
        "request_time_per_output_token_seconds",
        "Decode time of a request for each token after its first.",
        "time_per_token",
        ITL_BUCKETS_S,
    ),
    shown(
        "request_prompt_tokens", "Prompt tokens of a request.", "request_prompt_tokens",
        TOKEN_BUCKETS,
    ),
    shown(
        "request_generation_tokens", "Generated tokens of a request.", "request_generation_tokens",
        TOKEN_BUCKETS,
    ),
    shown(
        "request_max_num_generation_tokens", "Tokens that a request could have generated.",
        "request_max_tokens", TOKEN_BUCKETS,
    ),
    shown(
        "request_params_max_tokens", "The max_tokens of a request, after its limits.",
        "request_max_tokens", TOKEN_BUCKETS,
    ),
    shown(
        "iteration_tokens_total", "Tokens computed in a step.", "step_tokens", STEP_TOKEN_BUCKETS
    ),
)  # fmt: skip
HTTP_HISTOGRAMS = (
    shown(
        "time_to_first_token_seconds", "From accepting to writing the first token.", "ttft",
        TTFT_BUCKETS_S,
    ),
    shown("inter_token_latency_seconds", "Between two tokens as written.", "itl", ITL_BUCKETS_S),
    shown("e2e_request_latency_seconds", "From accepting to the end of a whole answer.", "e2e"),
    shown("request_params_n", "The n of a request.", "choices", CHOICE_BUCKETS),
)  # fmt: skip

FAMILIES = (
    *(each.family for each in SCHEDULER),
    NUM_WAITING,
    KV_USAGE,
    REQUEST_SUCCESS,
    *(each.family for each in (*SCHEDULER_HISTOGRAMS, *HTTP_HISTOGRAMS)),
    CACHE_CONFIG,
)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the configuration says and the pages do not."""

    model_name: str
    block_size: int
    cache_dtype: str
    prefix_cache: bool
    kv_memory_fraction: float

    @property
    def labels(self) -> Labels:
        """vLLM's two labels."""
        return (("model_name", self.model_name), ("engine", "0"))


def facts_of(config: HeadraceConfig, model_name: str) -> EngineFacts:
    """Return the facts of a configuration; `model_name` is what clients call the model."""
    engine = config.engine
    return EngineFacts(
        model_name=model_name,
        block_size=engine.block_size,
        cache_dtype=engine.dtype,
        prefix_cache=engine.prefix_cache,
        kv_memory_fraction=engine.kv_memory_fraction,
    )


def add(out: Exposition, boards: Boards, facts: EngineFacts) -> None:
    """Append all families."""
    labels, scheduler = facts.labels, boards.record("scheduler")
    add_fields(out, SCHEDULER, [(labels, scheduler)])
    waiting = scheduler["num_waiting"] + scheduler["num_preempted"] + scheduler["num_swapped"]
    out.add(NUM_WAITING, [(labels, int(waiting))])
    out.add(KV_USAGE, [(labels, kv_usage(scheduler))])
    out.add(REQUEST_SUCCESS, success_samples(labels, scheduler))
    out.add(CACHE_CONFIG, [(cache_labels(scheduler, facts), 1)])
    add_histograms(out, SCHEDULER_HISTOGRAMS, [(labels, scheduler)])
    add_http_sums(out, boards, labels)


def add_http_sums(out: Exposition, boards: Boards, labels: Labels) -> None:
    """Append the histograms of all http processes as one each; zeros if there is no page."""
    pages = [page.record for _, page in boards.of_kind("http")] or [boards.record("http")]
    for each in HTTP_HISTOGRAMS:
        fields = [page[each.field] for page in pages]
        counts = np.sum([field["counts"] for field in fields], axis=0).tolist()
        total = float(sum(field["sum"] for field in fields))
        out.add_histogram(each.family, each.bounds, [(labels, counts, total)])


def success_samples(labels: Labels, scheduler: np.void) -> Iterator[tuple[Labels, int]]:
    """Yield the finished requests by vLLM's reasons."""
    for reason in FinishReason:
        if reason is not FinishReason.NONE:
            ends = [status for status, ended in FINISH_REASONS.items() if ended is reason]
            count = sum(int(scheduler["finished"][status]) for status in ends)
            yield (*labels, ("finished_reason", reason.name.lower())), count


def cache_labels(scheduler: np.void, facts: EngineFacts) -> Labels:
    """Return the labels of `vllm:cache_config_info`; blocks of an accelerator's pool are called gpu
    blocks there."""
    blocks = sum(int(row["num_blocks"]) for row in replicas_of(scheduler))
    host_blocks = sum(int(row["num_host_blocks"]) for row in replicas_of(scheduler))
    return (
        *facts.labels,
        ("block_size", str(facts.block_size)),
        ("cache_dtype", facts.cache_dtype),
        ("enable_prefix_caching", str(facts.prefix_cache)),
        ("gpu_memory_utilization", str(facts.kv_memory_fraction)),
        ("num_gpu_blocks", str(blocks)),
        ("num_cpu_blocks", str(host_blocks)),
    )


def kv_usage(scheduler: np.void) -> float:
    """Return the share of all blocks that requests hold or that are fenced, 0 to 1."""
    rows = replicas_of(scheduler)
    used = sum(int(row["num_held_blocks"]) + int(row["num_fenced_blocks"]) for row in rows)
    return used / max(1, sum(int(row["num_blocks"]) for row in rows))
