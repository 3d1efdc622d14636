"""What the dashboard knows of an engine at one moment: plain data, the same live, recorded or made
up.

Owns: the fields that screens may show, with their units. Never knows: shared memory, files or
widgets. Counters are as the engine counts them, from its start; what they amount to per second, or
in the last seconds, is the business of `dashboard.history`. Frames are written to disk as they are:
a changed field means another RECORDING_VERSION.
"""

from enum import StrEnum

import msgspec

RECORDING_VERSION = 2


class Liveness(StrEnum):
    """Whether what is shown is what is."""

    LIVE = "live"
    STALE = "stale"  # the engine is there, but its scheduler says nothing new
    GONE = "gone"  # no engine of that name runs


class Histogram(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Counts by bucket (the last one is endless), and the sum; the bounds are in `ipc.pages`."""

    counts: tuple[int, ...] = ()
    sum_s: float = 0.0


class ClassFrame(msgspec.Struct, frozen=True, array_like=True):
    """One class of traffic; promises of 0 are none, `deadline_misses` counts promised first tokens
    that came late or never.
    """

    name: str
    paused: bool
    weight: float
    waiting: int
    running: int
    held_blocks: int
    reserved_blocks: int
    reserved_seqs: int
    reserved_step_tokens: int
    virtual_lead: float
    queue_time: Histogram
    ttft_ms: int = 0
    itl_ms: int = 0
    queue_deadline_ms: int = 0
    deadline_misses: int = 0


class TenantFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One tenant; `budget_tokens` None = it has no token budget. `rejections` are those that its
    clients were told.
    """

    name: str
    paused: bool
    weight: float
    share_due: float
    share_used: float
    waiting: int
    waiting_tokens: int
    oldest_wait_s: float
    running: int
    preempted: int
    swapped: int
    held_blocks: int
    quota_blocks: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    recomputed_tokens: int
    rejections: dict[str, int]
    budget_tokens: int | None = None
    budget_limit: int = 0
    virtual_lead: float = 0.0
    ttft: Histogram = Histogram()
    deadline_misses: int = 0
    removed: bool = False


class ReplicaFrame(msgspec.Struct, frozen=True, array_like=True):
    """One replica as the scheduler sees it; `epoch` 0 = no executor is attached."""

    epoch: int
    step: int
    running: int
    num_blocks: int
    held_blocks: int
    evictable_blocks: int
    fenced_blocks: int
    host_blocks: int
    held_host_blocks: int
    draining: bool
    last_step_age_s: float | None
    plan_age_s: float | None
    cost_factors: tuple[float, float]  # of steps that only decode, and of those with prompts
    cost_sigmas: tuple[float, float]
    infeasible_steps: int
    expected_step_s: float = 0.0  # of the steps in flight, else of most; 0 = nobody knows


class ExecutorFrame(msgspec.Struct, frozen=True, array_like=True):
    """One executor's own page."""

    child: str
    steps: int
    tokens: int
    step_time: Histogram
    weights_bytes: int
    kv_bytes: int
    block_bytes: int
    threads: int
    kernel_path: str
    device_name: str
    model: str


class ProcessFrame(msgspec.Struct, frozen=True, array_like=True):
    """One process of the engine; `activity` is what its loop says of itself, and `patience_s` for
    how much longer it has said it would be silent, None if it has not. `fault` is why its last
    instance ended, until one serves.
    """

    child: str
    pid: int
    epoch: int
    state: str
    activity: str
    restarts: int
    heartbeat_age_s: float | None
    patience_s: float | None = None
    fault: str = ""


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """The engine as a whole."""

    waiting: int = 0
    waiting_tokens: int = 0
    oldest_wait_s: float = 0.0
    running: int = 0
    preempted: int = 0
    swapped: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    swapped_out_tokens: int = 0
    finished: int = 0
    connections: int = 0
    streams: int = 0
    ttft: Histogram = Histogram()
    itl: Histogram = Histogram()
    queue_time: Histogram = Histogram()
    step_time: Histogram = Histogram()
    schedule_time: Histogram = Histogram()
    rejections: dict[str, int] = {}
    preemptions_by: dict[str, int] = {}
    leftovers: dict[str, int] = {}


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """Everything at `taken_s`, a clock of the source's own that only moves on; `wall_s` is the time
    of day. `age_s` is that of the scheduler's page, or of the last frame once the engine is gone.
    """

    taken_s: float
    wall_s: float
    name: str
    liveness: Liveness = Liveness.GONE
    age_s: float = 0.0
    uptime_s: float = 0.0
    scheduler_epoch: int = 0
    draining: bool = False
    stopping: bool = False
    totals: Totals = Totals()
    classes: tuple[ClassFrame, ...] = ()
    tenants: tuple[TenantFrame, ...] = ()
    replicas: tuple[ReplicaFrame, ...] = ()
    executors: tuple[ExecutorFrame, ...] = ()
    processes: tuple[ProcessFrame, ...] = ()
    fault: str = ""  # why nothing can be read of an engine that runs

    @property
    def num_blocks(self) -> int:
        """KV blocks of all replicas."""
        return sum(replica.num_blocks for replica in self.replicas)

    @property
    def held_blocks(self) -> int:
        """KV blocks that requests hold."""
        return sum(replica.held_blocks for replica in self.replicas)
