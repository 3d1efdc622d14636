"""What each process shows on its board page: numpy record layouts, versioned together.

Owns: field names, dtypes and units of everything that metrics, health, admin and the dashboard
read. Never knows: how a page is stored (`ipc.board`) or who renders it. Counters only grow: a
restarted process goes on where its predecessor's page stopped, under a new epoch (but admin workers
start at 0). Changing a layout means raising PAGE_VERSION: readers of another version are refused.
What a page has most of are rows, so they stand at its end, right behind their number: only those
that are used are copied (`ipc.board`).
"""

import numpy as np

PAGE_VERSION = 13
MAX_PAGE_REPLICAS = 8
MAX_PAGE_TOKENIZERS = 8
MAX_PAGE_TENANTS = 256  # rows; while all are taken, the rest is summed in the first, `_other`
MAX_PAGE_CHILDREN = 48
MAX_FAULT_BYTES = 320
NUM_PAGE_CLASSES = 4
MAX_PAGE_LEFTOVERS = 32
MAX_PAGE_RINGS = 24
NO_BUDGET = -1
MAX_REJECTION_REASONS = 32
NUM_PREEMPTION_KINDS = 3
NUM_PREEMPTION_CAUSES = 5

# Upper bounds of histogram buckets, seconds: vLLM's, so that stock dashboards work; then +Inf.
TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
ITL_BUCKETS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
LATENCY_BUCKETS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_BUCKETS_S = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0,
)  # fmt: skip
RECLAIM_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
RECLAIM_BUCKETS_STEPS = (0, 1, 2, 3, 5, 10)
TOKEN_BUCKETS = tuple(digit * 10**exponent for exponent in range(6) for digit in (1, 2, 5))
CHOICE_BUCKETS = (1, 2, 5, 10, 20)
STEP_TOKEN_BUCKETS = (1, *(2**exponent for exponent in range(3, 15)))


def histogram(buckets: tuple[float, ...]) -> np.dtype[np.void]:
    """Return a histogram's layout: counts by bucket (+Inf last, not cumulative), sum of values."""
    return np.dtype([("counts", np.uint64, (len(buckets) + 1,)), ("sum", np.float64)])


CHILD = np.dtype(
    [
        ("name", "S24"),  # child id, e.g. executor.0.0
        ("pid", np.int64),
        ("epoch", np.uint64),  # of the instance that the supervisor started last
        ("state", np.int32),  # core.supervision.ProcessState
        ("restarts", np.uint32),
        ("started_ns", np.int64),
        ("fault", f"S{MAX_FAULT_BYTES}"),  # why its last instance ended, until one serves again
    ]
)

SUPERVISOR_PAGE = np.dtype(
    [
        ("started_ns", np.int64),
        ("http_port", np.int32),
        ("admin_port", np.int32),
        ("stopping", np.int32),  # 1 after SIGTERM or `shutdown`
        ("num_children", np.int32),
        ("children", CHILD, (MAX_PAGE_CHILDREN,)),
    ]
)

STEP_REGIMES = ("decode", "mixed")  # steps of decodes alone, steps with prompts
REPLICA = np.dtype(
    [
        ("epoch", np.uint64),  # 0 = no executor is attached
        ("step", np.uint64),
        ("last_step_ns", np.int64),  # when the last result arrived
        ("plan_sent_ns", np.int64),  # when the oldest plan in flight was sent; 0 = none
        ("expected_step_ns", np.int64),  # of the steps in flight, else of most; 0 = nobody knows
        ("num_running", np.int32),
        ("num_blocks", np.int32),
        ("num_held_blocks", np.int32),
        ("num_evictable_blocks", np.int32),
        ("num_fenced_blocks", np.int32),
        ("num_host_blocks", np.int32),
        ("num_held_host_blocks", np.int32),
        ("draining", np.int32),
        # By STEP_REGIMES: by which factor steps differ from what was measured at the start (0 =
        # nothing is predicted), and how much they scatter around that.
        ("cost_factors", np.float64, (2,)),
        ("cost_sigmas", np.float64, (2,)),
        ("infeasible_steps", np.uint64),  # whose decodes alone broke a promised gap
        # Of the steps that could be predicted: how long they were to take, and took.
        ("predicted_ns", np.uint64),
        ("measured_ns", np.uint64),
    ]
)

TENANT = np.dtype(
    [
        ("name", "S64"),
        ("tenure", np.uint64),  # another one, another tenant: its counters have begun at 0
        ("num_waiting", np.int64),
        ("waiting_tokens", np.int64),
        ("oldest_wait_ns", np.int64),
        ("num_running", np.int64),
        ("num_preempted", np.int64),
        ("num_swapped", np.int64),
        ("held_blocks", np.int64),
        ("requests", np.uint64),
        ("prompt_tokens", np.uint64),
        ("cached_tokens", np.uint64),
        ("generated_tokens", np.uint64),
        ("preemptions", np.uint64),
        ("recomputed_tokens", np.uint64),
        ("deadline_misses", np.uint64),  # promised first tokens that came late or never
        ("rejections", np.uint64, (MAX_REJECTION_REASONS,)),  # by the scheduler alone
        ("queue_time", histogram(LATENCY_BUCKETS_S)),
        ("paused", np.int32),
        ("removed", np.int32),  # 1 = no tenant of that name any more; another may get the row
        ("weight", np.float64),
        ("share_due", np.float64),  # of the service, by weight among those that have work now
        ("share_used", np.float64),  # of the service of the last seconds
        ("service", np.int64),  # charged so far, in the policy's unit
        ("virtual_lead", np.float64),  # most service ahead of the least served of a class, weighted
        ("budget_tokens", np.int64),  # left of its token-rate budget; NO_BUDGET = it has none
        ("budget_tat_ns", np.int64),  # when that is full again; 0 = it has none
        ("kv_quota_blocks", np.int64),
    ]
)

LEFTOVER = np.dtype([("reason", "S24"), ("tokens", np.uint64)])
RING = np.dtype([("name", "S24"), ("num_used", np.int32), ("num_slots", np.int32)])

CLASS = np.dtype(
    [
        ("num_waiting", np.int64),
        ("oldest_wait_ns", np.int64),
        ("num_running", np.int64),
        ("held_blocks", np.int64),
        ("paused", np.int32),
        ("weight", np.float64),
        ("reserved_blocks", np.int64),
        ("reserved_seqs", np.int64),
        ("reserved_step_tokens", np.int64),
        ("service", np.int64),
        ("virtual_lead", np.float64),
        ("prompt_tokens", np.uint64),
        ("cached_tokens", np.uint64),
        ("generated_tokens", np.uint64),
        ("deadline_misses", np.uint64),
        ("queue_time", histogram(LATENCY_BUCKETS_S)),
    ]
)

SCHEDULER_PAGE = np.dtype(
    [
        ("steps", np.uint64),
        ("draining", np.int32),
        ("ready", np.int32),
        ("num_waiting", np.int64),
        ("waiting_tokens", np.int64),
        ("oldest_wait_ns", np.int64),
        ("num_running", np.int64),
        ("num_preempted", np.int64),
        ("num_swapped", np.int64),
        ("prompt_tokens", np.uint64),
        ("cached_tokens", np.uint64),
        ("generated_tokens", np.uint64),
        ("prefix_queries_tokens", np.uint64),
        ("prefix_hits_tokens", np.uint64),
        ("preemptions", np.uint64),
        # By core.metering.PreemptionKind and PreemptionCause.
        ("preemptions_by", np.uint64, (NUM_PREEMPTION_KINDS, NUM_PREEMPTION_CAUSES)),
        ("swapped_out_tokens", np.uint64),
        ("swapped_in_tokens", np.uint64),
        ("recomputed_after_swap_tokens", np.uint64),  # the shared prefix was gone
        ("recomputed_tokens", np.uint64),
        ("finished", np.uint64, (10,)),  # by RequestStatus
        ("rejections", np.uint64, (MAX_REJECTION_REASONS,)),  # by RejectionReason
        ("queue_time", histogram(LATENCY_BUCKETS_S)),
        ("prefill_time", histogram(LATENCY_BUCKETS_S)),
        ("decode_time", histogram(LATENCY_BUCKETS_S)),
        ("inference_time", histogram(LATENCY_BUCKETS_S)),
        ("e2e_time", histogram(LATENCY_BUCKETS_S)),
        ("time_per_token", histogram(ITL_BUCKETS_S)),
        ("request_prompt_tokens", histogram(TOKEN_BUCKETS)),
        ("request_generation_tokens", histogram(TOKEN_BUCKETS)),
        ("request_max_tokens", histogram(TOKEN_BUCKETS)),
        ("step_tokens", histogram(STEP_TOKEN_BUCKETS)),
        ("step_time", histogram(STEP_BUCKETS_S)),
        ("schedule_time", histogram(STEP_BUCKETS_S)),  # next_plan + on_result
        ("cancel_reclaim", histogram(RECLAIM_BUCKETS_S)),
        ("cancel_reclaim_steps", histogram(RECLAIM_BUCKETS_STEPS)),
        ("cancel_reclaim_steps_max", np.int64),
        ("last_reclaim_ns", np.int64),  # when a cancelled request's memory and row were free last
        ("ring_errors", np.uint64),  # gaps or checksum errors seen and resynchronized
        ("dropped_frames", np.uint64),  # undecodable frames
        ("stale_frames", np.uint64),  # results for a predecessor of this instance
        ("ignored_results", np.uint64),  # of no plan in flight, or lost before a later one
        ("duplicate_requests", np.uint64),  # submitted though they were there
        ("overrun_tokens", np.uint64),  # generated behind a stop string
        # Instances that may write their arenas: no request of a predecessor is written any more.
        ("tokenizer_epochs", np.uint64, (MAX_PAGE_TOKENIZERS,)),
        ("num_replicas", np.int32),
        ("replicas", REPLICA, (MAX_PAGE_REPLICAS,)),
        ("price_epoch", np.int64),  # of what is charged for a token; 0 = nobody is charged
        ("system_service", np.int64),  # charged to nobody, in the policy's unit
        ("held_output_bytes", np.int64),  # outputs for which there was no room in a ring yet
        ("num_rings", np.int32),
        ("rings", RING, (MAX_PAGE_RINGS,)),
        ("num_leftovers", np.int32),
        ("leftovers", LEFTOVER, (MAX_PAGE_LEFTOVERS,)),
        ("classes", CLASS, (NUM_PAGE_CLASSES,)),  # by core.tenancy.classes.TrafficClass
        ("tenant_names_left", np.int32),  # further tenants that would get a row of their own
        ("num_tenants", np.int32),
        ("tenants", TENANT, (MAX_PAGE_TENANTS,)),
    ]
)

EXECUTOR_PAGE = np.dtype(
    [
        ("steps", np.uint64),
        ("last_step_ns", np.int64),
        ("step_time", histogram(STEP_BUCKETS_S)),
        ("tokens", np.uint64),
        ("stale_frames", np.uint64),  # plans for a predecessor of this instance
        ("weights_bytes", np.uint64),
        ("kv_bytes", np.uint64),
        ("num_kv_blocks", np.int64),
        ("num_host_blocks", np.int64),  # host memory for the KV blocks of swapped requests
        ("block_bytes", np.int64),
        ("swap_gb_per_s", np.float64),  # speed of copies of blocks, one way, as measured
        # Measured at the start, ns: a step, a token, a pair, a decode's context token, a decode.
        ("cost_basis", np.float64, (5,)),
        ("threads", np.int32),
        ("gpu_known", np.int32),  # 1 = the next four are what its GPU said with the last steps
        ("gpu_utilization", np.float64),  # share of the time, 0 to 1
        ("gpu_memory_used_bytes", np.uint64),
        ("gpu_power_watts", np.float64),
        ("gpu_temperature_celsius", np.float64),
        ("kernel_path", "S32"),  # which kernels: "cpp", "torch", "triton"
        ("device_name", "S64"),
        ("model", "S128"),
    ]
)

TOKENIZER_PAGE = np.dtype(
    [
        ("num_operations", np.int64),
        ("longest_token_bytes", np.int64),  # text of n bytes has at least n / this many tokens
        ("arena_used_chunks", np.int64),
        ("arena_chunks", np.int64),
        ("encoded_tokens", np.uint64),
        ("decoded_tokens", np.uint64),
        ("resubmitted_requests", np.uint64),
        ("rejections", np.uint64, (MAX_REJECTION_REASONS,)),
        ("ring_errors", np.uint64),
        ("dropped_frames", np.uint64),
    ]
)

CLIENT_TIMES = [
    ("ttft", histogram(TTFT_BUCKETS_S)),
    ("itl", histogram(ITL_BUCKETS_S)),
    ("e2e", histogram(LATENCY_BUCKETS_S)),
]
HTTP_CLASS = np.dtype(CLIENT_TIMES)
HTTP_TENANT = np.dtype(
    [
        ("name", "S64"),
        ("tenure", np.uint64),  # as on the scheduler's page, by numbers of this process's own
        ("requests", np.uint64),  # for output, whatever became of them
        ("rejections", np.uint64, (MAX_REJECTION_REASONS,)),  # as told to its clients
        *CLIENT_TIMES,
    ]
)

HTTP_PAGE = np.dtype(
    [
        ("num_connections", np.int64),
        ("num_streams", np.int64),
        ("backlog_events", np.int64),  # outputs that no stream has taken up yet
        ("backlog_bytes", np.int64),  # written, and not yet taken by the clients' sockets
        ("requests", np.uint64),
        ("responses", np.uint64, (6,)),  # by status class: index 2 = 2xx …
        ("disconnects", np.uint64),
        ("slow_readers_cut", np.uint64),
        ("rejections", np.uint64, (MAX_REJECTION_REASONS,)),
        ("streamed_tokens", np.uint64),
        ("lost_spans", np.uint64),  # of traces, that were not sent
        *CLIENT_TIMES,
        ("choices", histogram(CHOICE_BUCKETS)),  # asked for in a request, `n`
        ("dropped_frames", np.uint64),
        ("classes", HTTP_CLASS, (NUM_PAGE_CLASSES,)),
        ("tenant_names_left", np.int32),
        ("num_tenants", np.int32),
        ("tenants", HTTP_TENANT, (MAX_PAGE_TENANTS,)),  # in an order of this process's own
    ]
)

ADMIN_PAGE = np.dtype(
    [
        ("commands", np.uint64),
        ("refused", np.uint64),
        ("dropped_frames", np.uint64),
        ("keep_failures", np.int64),  # to write the state database, since the last success
        ("kept_ns", np.int64),  # counters on pages up to then are there; 0 = others see to that
    ]
)
