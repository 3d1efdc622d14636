"""The metrics by tenant and by class of traffic, and the page fields they show."""

from frontends.metrics.shown import S_PER_NS, Shown, ShownHistogram, counter, gauge, histogram
from ipc.pages import LATENCY_BUCKETS_S

TENANT = (
    Shown(gauge("headrace_tenant_requests_waiting", "Waiting.", "tenant"), "num_waiting"),
    Shown(gauge("headrace_tenant_waiting_tokens", "Queued tokens.", "tenant"), "waiting_tokens"),
    Shown(
        gauge("headrace_tenant_oldest_wait_seconds", "Wait of its oldest request.", "tenant"),
        "oldest_wait_ns",
        S_PER_NS,
    ),
    Shown(gauge("headrace_tenant_requests_running", "Running.", "tenant"), "num_running"),
    Shown(gauge("headrace_tenant_requests_preempted", "Preempted.", "tenant"), "num_preempted"),
    Shown(gauge("headrace_tenant_requests_swapped", "Swapped out.", "tenant"), "num_swapped"),
    Shown(gauge("headrace_tenant_kv_blocks_held", "KV blocks held.", "tenant"), "held_blocks"),
    Shown(counter("headrace_tenant_requests_total", "Requests.", "tenant"), "requests"),
    Shown(counter("headrace_tenant_prompt_tokens_total", "Prompt.", "tenant"), "prompt_tokens"),
    Shown(counter("headrace_tenant_cached_tokens_total", "Reused.", "tenant"), "cached_tokens"),
    Shown(
        counter("headrace_tenant_generated_tokens_total", "Generated.", "tenant"),
        "generated_tokens",
    ),
    Shown(counter("headrace_tenant_preemptions_total", "Preemptions.", "tenant"), "preemptions"),
    Shown(
        counter("headrace_tenant_recomputed_tokens_total", "Computed again.", "tenant"),
        "recomputed_tokens",
    ),
    Shown(
        gauge("headrace_tenant_paused", "1 while an operator has paused it.", "tenant"), "paused"
    ),
    Shown(gauge("headrace_tenant_weight", "Its weight within a class.", "tenant"), "weight"),
    Shown(
        gauge("headrace_tenant_share_due", "Its share by weight while it has work.", "tenant"),
        "share_due",
    ),
    Shown(
        gauge("headrace_tenant_share_used", "Its share of the last 10 s of service.", "tenant"),
        "share_used",
    ),
    Shown(
        counter("headrace_tenant_service_total", "Charged, in the unit of the policy.", "tenant"),
        "service",
    ),
    Shown(
        gauge("headrace_tenant_virtual_lead", "Service ahead of the least served.", "tenant"),
        "virtual_lead",
    ),
    Shown(
        gauge("headrace_tenant_kv_blocks_quota", "KV blocks it may hold.", "tenant"),
        "kv_quota_blocks",
    ),
)
TENANT_BUDGET = gauge(
    "headrace_tenant_budget_tokens", "Left of its token-rate budget, where it has one.", "tenant"
)
CLASS = (
    Shown(gauge("headrace_class_requests_waiting", "Waiting.", "class"), "num_waiting"),
    Shown(gauge("headrace_class_requests_running", "Running.", "class"), "num_running"),
    Shown(gauge("headrace_class_paused", "1 while an operator has paused it.", "class"), "paused"),
    Shown(gauge("headrace_class_weight", "Its weight among the classes.", "class"), "weight"),
    Shown(gauge("headrace_class_kv_blocks_held", "KV blocks held.", "class"), "held_blocks"),
    Shown(
        gauge("headrace_class_kv_blocks_reserved", "KV blocks kept for it.", "class"),
        "reserved_blocks",
    ),
    Shown(
        gauge("headrace_class_sequences_reserved", "Sequences kept for it.", "class"),
        "reserved_seqs",
    ),
    Shown(
        gauge("headrace_class_step_tokens_reserved", "Tokens of a step kept for it.", "class"),
        "reserved_step_tokens",
    ),
    Shown(
        counter("headrace_class_service_total", "Charged, in the unit of the policy.", "class"),
        "service",
    ),
    Shown(
        gauge("headrace_class_virtual_lead", "Service ahead of the least served.", "class"),
        "virtual_lead",
    ),
)
CLASS_QUEUE_TIME = ShownHistogram(
    histogram("headrace_class_queue_time_seconds", "Time in the queue before the start.", "class"),
    "queue_time",
    LATENCY_BUCKETS_S,
)
TENANT_REJECTIONS = counter(
    "headrace_tenant_rejections_total",
    "Refusals of a tenant by reason; reasons that never occurred are left out.",
    "tenant",
    "reason",
)
