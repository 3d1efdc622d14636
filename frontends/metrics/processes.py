"""The metrics by process: what executors, tokenizers, http and admin workers count, and what is
known of every process alike.

Owns: these families and which page fields they show. Never knows: what the processes do.
"""

from frontends.boards import Boards, text_of
from frontends.metrics.exposition import Exposition
from frontends.metrics.shown import (
    Shown,
    ShownHistogram,
    add_fields,
    add_histograms,
    counter,
    field_samples,
    gauge,
    histogram,
    labelled,
    process_label,
)
from frontends.overdue import signs
from ipc.pages import STEP_BUCKETS_S

UPTIME = gauge("headrace_uptime_seconds", "Time since the engine was started.")
STOPPING = gauge("headrace_stopping", "1 after SIGTERM or shutdown.")
EPOCH = gauge("headrace_process_epoch", "Epoch of the process.", "process")
RESTARTS = counter("headrace_process_restarts_total", "Restarts.", "process")
HEARTBEAT_AGE = gauge(
    "headrace_heartbeat_age_seconds", "Time since its loop stamped its heartbeat.", "process"
)
OVERDUE = gauge(
    "headrace_process_overdue_seconds",
    "For how long it has given no sign, if that is longer than its work explains; else 0.",
    "process",
)
PAGE_AGE = gauge("headrace_page_age_seconds", "Time since it wrote its page.", "process")
RING_ERRORS = counter(
    "headrace_ring_errors_total", "Sequence gaps and checksum errors, resynchronized.", "process"
)
DROPPED_FRAMES = counter("headrace_dropped_frames_total", "Undecodable frames, dropped.", "process")
STALE_FRAMES = counter(
    "headrace_stale_frames_total",
    "Plans and results for an instance before this one, dropped as they must be.",
    "process",
)

EXECUTOR = (
    Shown(counter("headrace_executor_steps_total", "Steps computed.", "process"), "steps"),
    Shown(counter("headrace_executor_tokens_total", "Tokens computed.", "process"), "tokens"),
    Shown(gauge("headrace_executor_weights_bytes", "Weights.", "process"), "weights_bytes"),
    Shown(gauge("headrace_executor_kv_bytes", "KV pool.", "process"), "kv_bytes"),
    Shown(gauge("headrace_executor_threads", "Compute threads.", "process"), "threads"),
)
EXECUTOR_GPU = (  # of executors whose GPU tells
    Shown(
        gauge("headrace_executor_gpu_utilization", "Share of time its GPU computed.", "process"),
        "gpu_utilization",
    ),
    Shown(
        gauge("headrace_executor_gpu_memory_used_bytes", "Memory in use on its GPU.", "process"),
        "gpu_memory_used_bytes",
    ),
    Shown(
        gauge("headrace_executor_gpu_power_watts", "Power its GPU takes.", "process"),
        "gpu_power_watts",
    ),
    Shown(
        gauge("headrace_executor_gpu_temperature_celsius", "Temperature of its GPU.", "process"),
        "gpu_temperature_celsius",
    ),
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
    Shown(
        gauge("headrace_http_backlog_events", "Outputs not yet written to anybody.", "process"),
        "backlog_events",
    ),
    Shown(
        gauge("headrace_http_backlog_bytes", "Bytes that clients have not taken yet.", "process"),
        "backlog_bytes",
    ),
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
        counter(
            "headrace_http_streamed_tokens_total",
            "Tokens of choices whose end was handed to a client, streamed or not.",
            "process",
        ),
        "streamed_tokens",
    ),
    Shown(
        counter(
            "headrace_http_lost_spans_total",
            "Spans of traces that did not fit into the queue or that no collector took.",
            "process",
        ),
        "lost_spans",
    ),
)
HTTP_RESPONSES = counter(
    "headrace_http_responses_total", "HTTP answers by status class.", "process", "status_class"
)
ADMIN = (
    Shown(counter("headrace_admin_commands_total", "Control commands.", "process"), "commands"),
    Shown(counter("headrace_admin_refused_total", "Refused callers.", "process"), "refused"),
    Shown(
        gauge(
            "headrace_admin_keep_failures",
            "Failures to write usage and run-time changes, since the last success.",
            "process",
        ),
        "keep_failures",
    ),
)

FAMILIES = (
    UPTIME, STOPPING, EPOCH, RESTARTS, HEARTBEAT_AGE, OVERDUE, PAGE_AGE, RING_ERRORS,
    DROPPED_FRAMES, STALE_FRAMES,
)  # fmt: skip
EXECUTOR_FAMILIES = (
    *(each.family for each in EXECUTOR),
    *(each.family for each in EXECUTOR_GPU),
    EXECUTOR_STEP_TIME.family,
    EXECUTOR_INFO,
)
TOKENIZER_FAMILIES = tuple(each.family for each in TOKENIZER)
HTTP_FAMILIES = (*(each.family for each in HTTP), HTTP_RESPONSES)
ADMIN_FAMILIES = tuple(each.family for each in ADMIN)


def add_workers(out: Exposition, boards: Boards) -> None:
    """Append the families of executors, tokenizers, http and admin workers."""
    for kind, table in (
        ("executor", EXECUTOR), ("tokenizer", TOKENIZER), ("http", HTTP), ("admin", ADMIN),
    ):  # fmt: skip
        add_fields(out, table, labelled(boards.of_kind(kind)))
    executors = labelled(boards.of_kind("executor"))
    with_gpu = [(labels, row) for labels, row in executors if row["gpu_known"]]
    add_fields(out, EXECUTOR_GPU, with_gpu)
    add_histograms(out, (EXECUTOR_STEP_TIME,), executors)
    texts = ("kernel_path", "device_name", "model")
    out.add(
        EXECUTOR_INFO,
        [((*labels, *((t, text_of(row[t])) for t in texts)), 1) for labels, row in executors],
    )
    responses = [
        ((*labels, ("status_class", f"{digit}xx")), int(row["responses"][digit]))
        for labels, row in labelled(boards.of_kind("http"))
        for digit in range(1, 6)
    ]
    out.add(HTTP_RESPONSES, responses)


def add(out: Exposition, boards: Boards) -> None:
    """Append what is known of every process: age of heartbeat and page, epoch, restarts, wire
    errors."""
    supervisor = boards.record("supervisor")
    started_ns = int(supervisor["started_ns"])
    out.add(UPTIME, [((), boards.age_s(started_ns) if started_ns else 0.0)])
    out.add(STOPPING, [((), int(supervisor["stopping"]))])
    children = supervisor["children"][: int(supervisor["num_children"])]
    names = [process_label(text_of(name)) for name in children["name"].tolist()]
    for family, field in ((EPOCH, "epoch"), (RESTARTS, "restarts")):
        out.add(family, zip(names, children[field].tolist(), strict=True))
    beats = [
        (process_label(child), boards.age_s(beat.stamp_ns))
        for child, beat in sorted(boards.heartbeats.items())
    ]
    out.add(HEARTBEAT_AGE, beats)
    out.add(OVERDUE, [(process_label(each.process), each.overdue_s) for each in signs(boards)])
    pages = sorted(boards.pages.items())
    out.add(PAGE_AGE, [(process_label(c), boards.age_s(p.written_ns)) for c, p in pages])
    out.add(RING_ERRORS, field_samples(pages, "ring_errors"))
    out.add(DROPPED_FRAMES, field_samples(pages, "dropped_frames"))
    out.add(STALE_FRAMES, field_samples(pages, "stale_frames"))
