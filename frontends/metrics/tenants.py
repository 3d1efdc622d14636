"""The metrics by tenant and by class of traffic.

Owns: these families and which page fields they show. Never knows: how shares are kept. What the
scheduler counts comes from its page; times and refusals as clients saw them are the sums over the
pages of all http processes.
"""

from collections.abc import Sequence

import numpy as np

from core.tenancy.classes import CLASS_NAMES
from frontends.boards import Boards, text_of
from frontends.metrics.exposition import Exposition, Family, Labels
from frontends.metrics.shown import (
    S_PER_NS,
    Shown,
    ShownHistogram,
    add_columns,
    add_histogram_columns,
    counter,
    gauge,
    histogram,
)
from frontends.refusals import refusals
from ipc.page_sums import http_classes, http_tenants
from ipc.pages import (
    ITL_BUCKETS_S,
    LATENCY_BUCKETS_S,
    MAX_PAGE_TENANTS,
    NO_BUDGET,
    TTFT_BUCKETS_S,
)

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
    Shown(
        counter("headrace_tenant_requests_total", "Requests that reached the scheduler.", "tenant"),
        "requests",
    ),
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
        counter(
            "headrace_tenant_deadline_misses_total",
            "Promised first tokens that came late or never.",
            "tenant",
        ),
        "deadline_misses",
    ),
    Shown(
        gauge("headrace_tenant_paused", "1 while an operator has paused it.", "tenant"), "paused"
    ),
    Shown(
        gauge(
            "headrace_tenant_removed", "1 = it was removed; its series may end any time.", "tenant"
        ),
        "removed",
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
TENANT_CLIENTS = (
    Shown(
        counter(
            "headrace_tenant_http_requests_total",
            "Requests of its clients for output, those refused at the door among them.",
            "tenant",
        ),
        "requests",
    ),
)
TENANT_BUDGET = gauge(
    "headrace_tenant_budget_tokens", "Left of its token-rate budget, where it has one.", "tenant"
)
TENANT_REJECTIONS = counter(
    "headrace_tenant_rejections_total",
    "Refusals as told to its clients; reasons that never occurred are left out.",
    "tenant",
    "reason",
)
NAMES_LEFT = gauge(
    "headrace_tenant_names_left",
    "Further tenants that would be told apart if they asked for something now.",
)
CLASS = (
    Shown(gauge("headrace_class_requests_waiting", "Waiting.", "class"), "num_waiting"),
    Shown(
        gauge("headrace_class_oldest_wait_seconds", "Wait of its oldest request.", "class"),
        "oldest_wait_ns",
        S_PER_NS,
    ),
    Shown(gauge("headrace_class_requests_running", "Running.", "class"), "num_running"),
    Shown(counter("headrace_class_prompt_tokens_total", "Prompt.", "class"), "prompt_tokens"),
    Shown(counter("headrace_class_cached_tokens_total", "Reused.", "class"), "cached_tokens"),
    Shown(
        counter("headrace_class_generated_tokens_total", "Generated.", "class"), "generated_tokens"
    ),
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
    Shown(
        counter(
            "headrace_class_deadline_misses_total",
            "Promised first tokens that came late or never.",
            "class",
        ),
        "deadline_misses",
    ),
)


def queue_time(label: str) -> ShownHistogram:
    """Return the histogram of the time in the queue by `label`."""
    name = f"headrace_{label}_queue_time_seconds"
    family = histogram(name, "Time in the queue before the start.", label)
    return ShownHistogram(family, "queue_time", LATENCY_BUCKETS_S)


def client_times(label: str) -> tuple[ShownHistogram, ...]:
    """Return the histograms of the times that clients see by `label`."""
    return tuple(
        ShownHistogram(histogram(f"headrace_{label}_{name}_seconds", text, label), field, bounds)
        for name, text, field, bounds in (
            ("time_to_first_token", "From accepting to the first token.", "ttft", TTFT_BUCKETS_S),
            ("inter_token_latency", "Between two tokens as written.", "itl", ITL_BUCKETS_S),
            ("e2e_request_latency", "From accepting to the end.", "e2e", LATENCY_BUCKETS_S),
        )
    )


TENANT_QUEUE_TIME, TENANT_TIMES = queue_time("tenant"), client_times("tenant")
CLASS_QUEUE_TIME, CLASS_TIMES = queue_time("class"), client_times("class")

TENANT_FAMILIES: tuple[Family, ...] = (
    *(each.family for each in TENANT),
    *(each.family for each in TENANT_CLIENTS),
    TENANT_BUDGET,
    TENANT_REJECTIONS,
    NAMES_LEFT,
    *(each.family for each in (TENANT_QUEUE_TIME, *TENANT_TIMES)),
)
CLASS_FAMILIES: tuple[Family, ...] = (
    *(each.family for each in CLASS),
    *(each.family for each in (CLASS_QUEUE_TIME, *CLASS_TIMES)),
)


def add_tenants(out: Exposition, boards: Boards) -> None:
    """Append the families by tenant: the configured ones and `_other`."""
    scheduler = boards.record("scheduler")
    rows = scheduler["tenants"][: int(scheduler["num_tenants"])]
    labels = tenant_labels(rows)
    add_columns(out, TENANT, labels, rows)
    out.add(NAMES_LEFT, [((), names_left(boards))])
    budgets = zip(labels, rows["budget_tokens"].tolist(), strict=True)
    out.add(TENANT_BUDGET, [(label, left) for label, left in budgets if left != NO_BUDGET])
    add_histogram_columns(out, (TENANT_QUEUE_TIME,), labels, rows)
    clients = http_tenants([page.record for _, page in boards.of_kind("http")])
    add_columns(out, TENANT_CLIENTS, tenant_labels(clients), clients)
    add_histogram_columns(out, TENANT_TIMES, tenant_labels(clients), clients)
    told = [
        ((("tenant", tenant), ("reason", code)), count)
        for tenant, counts in refusals(boards).items()
        for code, count in counts.items()
    ]
    out.add(TENANT_REJECTIONS, told)


def add_classes(out: Exposition, boards: Boards) -> None:
    """Append the families by class of traffic."""
    labels: list[Labels] = [(("class", name),) for name in CLASS_NAMES]
    rows = boards.record("scheduler")["classes"]
    add_columns(out, CLASS, labels, rows)
    add_histogram_columns(out, (CLASS_QUEUE_TIME,), labels, rows)
    clients = http_classes([page.record for _, page in boards.of_kind("http")])
    add_histogram_columns(out, CLASS_TIMES, labels, clients)


def names_left(boards: Boards) -> int:
    """Return how many further tenants would get a row of their own in all processes that count."""
    pages = [page.record for kind in ("scheduler", "http") for _, page in boards.of_kind(kind)]
    left = [int(page["tenant_names_left"]) for page in pages if page["num_tenants"]]
    return min(left, default=MAX_PAGE_TENANTS - 1)


def tenant_labels(rows: np.ndarray) -> Sequence[Labels]:
    """Return the label of each row."""
    return [(("tenant", text_of(name)),) for name in rows["name"].tolist()]
