"""Every metric: name, type, help and labels, and the page field it shows where there is exactly
one.

`vllm:` names carry vLLM's labels (`model_name`, `engine`) and buckets, so that boards and tools
made for vLLM work here; all others begin with `headrace_`. No label ever holds a request id or text
of a client.
"""

from frontends.metrics.exposition import Family
from frontends.metrics.shown import S_PER_NS, Shown, ShownHistogram, counter, gauge, histogram
from frontends.metrics.tenant_families import (
    CLASS,
    CLASS_QUEUE_TIME,
    TENANT,
    TENANT_BUDGET,
    TENANT_REJECTIONS,
)
from ipc.pages import (
    ITL_BUCKETS_S,
    LATENCY_BUCKETS_S,
    RECLAIM_BUCKETS_S,
    STEP_BUCKETS_S,
    TTFT_BUCKETS_S,
)

VLLM = ("model_name", "engine")

VLLM_SCHEDULER = (
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
VLLM_SCHEDULER_HISTOGRAMS = (
    ShownHistogram(
        histogram("vllm:request_queue_time_seconds", "Time in the queue before the start.", *VLLM),
        "queue_time",
        LATENCY_BUCKETS_S,
    ),
    ShownHistogram(
        histogram("vllm:request_prefill_time_seconds", "From start to first token.", *VLLM),
        "prefill_time",
        LATENCY_BUCKETS_S,
    ),
    ShownHistogram(
        histogram("vllm:request_decode_time_seconds", "From first to last token.", *VLLM),
        "decode_time",
        LATENCY_BUCKETS_S,
    ),
)
VLLM_HTTP_HISTOGRAMS = (
    ShownHistogram(
        histogram(
            "vllm:time_to_first_token_seconds", "From accepting to writing the first token.", *VLLM
        ),
        "ttft",
        TTFT_BUCKETS_S,
    ),
    ShownHistogram(
        histogram("vllm:inter_token_latency_seconds", "Between two tokens as written.", *VLLM),
        "itl",
        ITL_BUCKETS_S,
    ),
    ShownHistogram(
        histogram("vllm:e2e_request_latency_seconds", "From accepting to the end.", *VLLM),
        "e2e",
        LATENCY_BUCKETS_S,
    ),
)

SCHEDULER = (
    Shown(gauge("headrace_ready", "1 if new requests are admitted."), "ready"),
    Shown(gauge("headrace_draining", "1 while the whole engine drains."), "draining"),
    Shown(gauge("headrace_waiting_tokens", "Prompt + max_tokens of the queue."), "waiting_tokens"),
    Shown(
        gauge("headrace_oldest_wait_seconds", "Wait of the oldest queued request."),
        "oldest_wait_ns",
        S_PER_NS,
    ),
    Shown(gauge("headrace_requests_preempted", "Preempted, not yet resumed."), "num_preempted"),
    Shown(gauge("headrace_requests_swapped", "Swapped out, not yet resumed."), "num_swapped"),
    Shown(counter("headrace_steps_total", "Steps of all replicas."), "steps"),
    Shown(counter("headrace_cached_tokens_total", "Prompt tokens reused."), "cached_tokens"),
    Shown(
        counter("headrace_recomputed_tokens_total", "Tokens computed again after a preemption."),
        "recomputed_tokens",
    ),
    Shown(
        counter("headrace_swapped_out_tokens_total", "Tokens whose KV was copied to the host."),
        "swapped_out_tokens",
    ),
    Shown(
        counter("headrace_swapped_in_tokens_total", "Tokens whose KV was copied back."),
        "swapped_in_tokens",
    ),
    Shown(
        counter(
            "headrace_recomputed_after_swap_tokens_total",
            "Tokens of swapped requests computed again: their shared prefix was gone.",
        ),
        "recomputed_after_swap_tokens",
    ),
    Shown(gauge("headrace_price_epoch", "Epoch of the prices in force; 0 = none."), "price_epoch"),
    Shown(
        counter("headrace_system_service_total", "Charged to nobody, in the unit of the policy."),
        "system_service",
    ),
    Shown(
        gauge("headrace_cancel_reclaim_steps_max", "Most steps a cancellation took to free KV."),
        "cancel_reclaim_steps_max",
    ),
)
SCHEDULER_HISTOGRAMS = (
    ShownHistogram(
        histogram("headrace_scheduler_e2e_seconds", "From arrival to the end, as scheduled."),
        "e2e_time",
        LATENCY_BUCKETS_S,
    ),
    ShownHistogram(
        histogram("headrace_step_time_seconds", "From sending a plan to its result."),
        "step_time",
        STEP_BUCKETS_S,
    ),
    ShownHistogram(
        histogram("headrace_schedule_time_seconds", "Deciding one step: plan and result."),
        "schedule_time",
        STEP_BUCKETS_S,
    ),
    ShownHistogram(
        histogram("headrace_cancel_reclaim_seconds", "From a cancellation to its blocks free."),
        "cancel_reclaim",
        RECLAIM_BUCKETS_S,
    ),
)
LEFTOVERS = counter(
    "headrace_leftover_tokens_total",
    "Tokens that steps left unused while somebody waited, by reason.",
    "reason",
)
REQUESTS_FINISHED = counter(
    "headrace_requests_finished_total", "Requests that ended, by final status.", "status"
)
PREEMPTIONS = counter(
    "headrace_preemptions_total", "Preemptions, by what was given back and for what.",
    "kind", "cause",
)  # fmt: skip
REJECTIONS = counter(
    "headrace_rejections_total", "Refusals by reason and by the process that saw them.",
    "process", "reason",
)  # fmt: skip

REPLICA = (
    Shown(gauge("headrace_replica_step", "Number of the last step.", "replica"), "step"),
    Shown(gauge("headrace_replica_epoch", "Epoch of its executor; 0 = none.", "replica"), "epoch"),
    Shown(gauge("headrace_replica_requests_running", "Running.", "replica"), "num_running"),
    Shown(gauge("headrace_replica_draining", "1 while it drains.", "replica"), "draining"),
    Shown(
        counter(
            "headrace_replica_infeasible_steps_total",
            "Steps whose decodes alone broke a promised gap.",
            "replica",
        ),
        "infeasible_steps",
    ),
)
REPLICA_COST_FACTOR = gauge(
    "headrace_replica_cost_factor",
    "Steps, by what was measured at the start; 0 = nothing is predicted.",
    "replica", "regime",
)  # fmt: skip
REPLICA_COST_SIGMA = gauge(
    "headrace_replica_cost_sigma", "Relative scatter of steps around their prediction.",
    "replica", "regime",
)  # fmt: skip
REPLICA_BLOCKS = gauge("headrace_kv_blocks", "KV blocks by state.", "replica", "state")
REPLICA_HOST_BLOCKS = gauge(
    "headrace_host_blocks", "Blocks of host memory for swapped requests.", "replica", "state"
)
REPLICA_STEP_AGE = gauge(
    "headrace_replica_last_step_age_seconds", "Time since its last result.", "replica"
)
REPLICA_PLAN_AGE = gauge(
    "headrace_replica_plan_age_seconds", "Age of its oldest plan in flight; 0 = none.", "replica"
)

EXECUTOR = (
    Shown(counter("headrace_executor_steps_total", "Steps computed.", "process"), "steps"),
    Shown(counter("headrace_executor_tokens_total", "Tokens computed.", "process"), "tokens"),
    Shown(gauge("headrace_executor_weights_bytes", "Weights.", "process"), "weights_bytes"),
    Shown(gauge("headrace_executor_kv_bytes", "KV pool.", "process"), "kv_bytes"),
    Shown(gauge("headrace_executor_threads", "Compute threads.", "process"), "threads"),
)
EXECUTOR_STEP_TIME = ShownHistogram(
    histogram("headrace_executor_step_time_seconds", "Computing a step.", "process"),
    "step_time",
    STEP_BUCKETS_S,
)
EXECUTOR_INFO = gauge(
    "headrace_executor_info", "What it runs on; always 1.",
    "process", "kernel_path", "device_name", "model",
)  # fmt: skip

TOKENIZER = (
    Shown(gauge("headrace_tokenizer_operations", "Live operations.", "process"), "num_operations"),
    Shown(
        gauge("headrace_tokenizer_arena_used_chunks", "Chunks of its arena in use.", "process"),
        "arena_used_chunks",
    ),
    Shown(
        gauge("headrace_tokenizer_arena_chunks", "Chunks of its arena.", "process"), "arena_chunks"
    ),
    Shown(
        counter("headrace_tokenizer_encoded_tokens_total", "Tokens encoded.", "process"),
        "encoded_tokens",
    ),
    Shown(
        counter("headrace_tokenizer_decoded_tokens_total", "Tokens decoded.", "process"),
        "decoded_tokens",
    ),
    Shown(
        counter(
            "headrace_tokenizer_resubmitted_requests_total",
            "Requests given to a restarted scheduler.",
            "process",
        ),
        "resubmitted_requests",
    ),
)

HTTP = (
    Shown(gauge("headrace_http_connections", "Open connections.", "process"), "num_connections"),
    Shown(gauge("headrace_http_streams", "Open streams.", "process"), "num_streams"),
    Shown(counter("headrace_http_requests_total", "HTTP requests.", "process"), "requests"),
    Shown(
        counter("headrace_http_disconnects_total", "Clients that left early.", "process"),
        "disconnects",
    ),
    Shown(
        counter("headrace_http_slow_readers_cut_total", "Readers cut off.", "process"),
        "slow_readers_cut",
    ),
    Shown(
        counter("headrace_http_streamed_tokens_total", "Tokens written.", "process"),
        "streamed_tokens",
    ),
)
HTTP_RESPONSES = counter(
    "headrace_http_responses_total", "HTTP answers by status class.", "process", "status_class"
)

ADMIN = (
    Shown(counter("headrace_admin_commands_total", "Control commands.", "process"), "commands"),
    Shown(counter("headrace_admin_refused_total", "Refused callers.", "process"), "refused"),
)

UPTIME = gauge("headrace_uptime_seconds", "Time since the engine was started.")
STOPPING = gauge("headrace_stopping", "1 after SIGTERM or shutdown.")
PROCESS_EPOCH = gauge("headrace_process_epoch", "Epoch of the process.", "process")
PROCESS_RESTARTS = counter("headrace_process_restarts_total", "Restarts.", "process")
HEARTBEAT_AGE = gauge(
    "headrace_heartbeat_age_seconds", "Time since its loop stamped its heartbeat.", "process"
)
PAGE_AGE = gauge("headrace_page_age_seconds", "Time since it wrote its page.", "process")
RING_ERRORS = counter(
    "headrace_ring_errors_total", "Sequence gaps and checksum errors, resynchronized.", "process"
)
DROPPED_FRAMES = counter("headrace_dropped_frames_total", "Undecodable frames, dropped.", "process")

FAMILIES: tuple[Family, ...] = (
    *(
        shown.family
        for table in (
            VLLM_SCHEDULER,
            SCHEDULER,
            REPLICA,
            CLASS,
            TENANT,
            EXECUTOR,
            TOKENIZER,
            HTTP,
            ADMIN,
        )
        for shown in table
    ),
    *(
        shown.family
        for table in (VLLM_SCHEDULER_HISTOGRAMS, VLLM_HTTP_HISTOGRAMS, SCHEDULER_HISTOGRAMS)
        for shown in table
    ),
    NUM_WAITING,
    KV_USAGE,
    REQUEST_SUCCESS,
    CACHE_CONFIG,
    REQUESTS_FINISHED,
    LEFTOVERS,
    REJECTIONS,
    PREEMPTIONS,
    REPLICA_BLOCKS,
    REPLICA_HOST_BLOCKS,
    REPLICA_COST_FACTOR,
    REPLICA_COST_SIGMA,
    REPLICA_STEP_AGE,
    REPLICA_PLAN_AGE,
    TENANT_REJECTIONS,
    TENANT_BUDGET,
    CLASS_QUEUE_TIME.family,
    EXECUTOR_STEP_TIME.family,
    EXECUTOR_INFO,
    HTTP_RESPONSES,
    UPTIME,
    STOPPING,
    PROCESS_EPOCH,
    PROCESS_RESTARTS,
    HEARTBEAT_AGE,
    PAGE_AGE,
    RING_ERRORS,
    DROPPED_FRAMES,
)
"""All of them, for the documentation test."""
