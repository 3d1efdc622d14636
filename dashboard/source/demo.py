"""Frames of an engine that does not exist, for trying the dashboard and for its tests.

Owns: what the toy engine looks like as a frame. Never knows: widgets, or what commands do to it.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from threading import Lock

from dashboard.frame import (
    ClassFrame,
    ExecutorFrame,
    Frame,
    Histogram,
    Liveness,
    ProcessFrame,
    ReplicaFrame,
    TenantFrame,
    Totals,
)
from dashboard.reading import merged
from dashboard.source.base import Record
from dashboard.source.demo_answers import carry_out
from dashboard.source.demo_engine import (
    NUM_BLOCKS,
    PROMISED_START_S,
    RESERVED_BLOCKS,
    WEIGHTS,
    DemoEngine,
    DemoRequest,
    DemoTenant,
)
from dashboard.vocabulary import CLASSES
from ipc.control.audit import MAX_COMMANDS
from ipc.control.declaration import Effect
from ipc.control.registry import COMMANDS

WARM_UP_S = 40.0
PROCESSES = ("janitor", "admin.0", "admin.1", "executor.0.0", "scheduler", "tokenizer.0", "http.0")


class DemoSource:
    """A toy engine on the clock `monotonic_s`."""

    title = "demo"
    takes_commands = True

    def __init__(
        self,
        seed: int,
        num_tenants: int,
        monotonic_s: Callable[[], float],
        wall_s: Callable[[], float],
    ) -> None:
        """Begin with an engine that has worked for a while."""
        self._engine = DemoEngine(seed, num_tenants)
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        self._begin_s = monotonic_s() - WARM_UP_S
        self._engine.advance(WARM_UP_S)
        self._commands: deque[Record] = deque(maxlen=MAX_COMMANDS)
        self._lock = Lock()  # commands come in a thread of their own

    def read(self) -> Frame:
        """Move the toy to now and return it."""
        with self._lock:
            taken_s = self._monotonic_s() - self._begin_s
            self._engine.advance(taken_s)
            return frame_of(self._engine, taken_s, self._wall_s())

    def call(self, command: str, args: Mapping[str, object]) -> Record:
        """Answer the commands that a toy can answer."""
        with self._lock:
            if command == "audit":
                return {"commands": list(self._commands), "complete": True}
            result = carry_out(self._engine, command, args)
            if COMMANDS[command].effect is Effect.WRITE:
                self._commands.append(self._audited(command, args, result))
            return result

    def _audited(self, command: str, args: Mapping[str, object], result: Record) -> Record:
        now = datetime.fromtimestamp(self._wall_s(), UTC)
        return {
            "time": now.isoformat(), "worker": "admin.0", "actor": "top demo",
            "command": command, "args": dict(args), "error": "", "result": result,
        }  # fmt: skip


def frame_of(engine: DemoEngine, taken_s: float, wall_s: float) -> Frame:
    """Return the toy as a frame."""
    held: Counter[str] = Counter()
    for request in engine.running:
        held[request.tenant] += request.blocks
    tenants = tuple(_tenants(engine, held))
    return Frame(
        taken_s=taken_s,
        wall_s=wall_s,
        name="demo",
        liveness=Liveness.LIVE,
        age_s=0.05,
        uptime_s=taken_s,
        scheduler_epoch=1,
        draining=engine.is_draining,
        totals=_totals(engine, tenants),
        classes=tuple(_class(engine, name) for name in CLASSES),
        tenants=tenants,
        replicas=(_replica(engine),),
        executors=(_executor(engine),),
        processes=tuple(
            ProcessFrame(
                child,
                4000 + k,
                1,
                "running",
                "busy" if k > 2 else "idle",
                0,
                0.01 + 0.003 * k,
                60.0 if child.startswith("executor") else None,
            )
            for k, child in enumerate(PROCESSES)
        ),
    )


def _totals(engine: DemoEngine, tenants: tuple[TenantFrame, ...]) -> Totals:
    rejections: Counter[str] = Counter()
    for tenant in tenants:
        rejections.update(tenant.rejections)
    preemptions = sum(tenant.preemptions for tenant in tenants)
    counted = ("waiting", "waiting_tokens", "running", "preempted", "prompt_tokens",
               "cached_tokens", "generated_tokens", "recomputed_tokens")  # fmt: skip
    return Totals(
        **{name: sum(getattr(tenant, name) for tenant in tenants) for name in counted},
        oldest_wait_s=max((tenant.oldest_wait_s for tenant in tenants), default=0.0),
        steps=engine.steps,
        preemptions=preemptions,
        finished=engine.finished,
        connections=len(engine.running) + len(engine.waiting),
        streams=len(engine.running),
        ttft=engine.ttft.frame(),
        itl=engine.itl.frame(),
        queue_time=merged([counts.frame() for counts in engine.queue_time.values()]),
        step_time=engine.step_time.frame(),
        schedule_time=Histogram((engine.steps, *[0] * 14), engine.steps * 2e-4),
        rejections=dict(rejections),
        preemptions_by={"recompute for admission": preemptions} if preemptions else {},
        leftovers=dict(engine.leftovers),
    )


def _class(engine: DemoEngine, name: str) -> ClassFrame:
    running = [request for request in engine.running if request.traffic_class == name]
    promised_s = PROMISED_START_S.get(name, 0.0)
    return ClassFrame(
        name=name,
        paused=name in engine.paused_classes,
        weight=WEIGHTS[name],
        waiting=sum(request.traffic_class == name for request in engine.waiting),
        running=len(running),
        held_blocks=sum(request.blocks for request in running),
        reserved_blocks=RESERVED_BLOCKS.get(name, 0),
        reserved_seqs={"interactive": 4, "administrative": 1}.get(name, 0),
        reserved_step_tokens=256 if name == "interactive" else 0,
        virtual_lead=0.0,
        queue_time=engine.queue_time[name].frame(),
        ttft_ms=round(promised_s * 1e3),
        itl_ms={"interactive": 250, "standard": 500, "administrative": 250}.get(name, 0),
        queue_deadline_ms=30_000 if promised_s else 0,
        deadline_misses=sum(
            tenant.rejections["shed_predicted"]
            for tenant in engine.tenants.values()
            if tenant.traffic_class == name
        ),
    )


def _tenants(engine: DemoEngine, held: Mapping[str, int]) -> Iterator[TenantFrame]:
    waiting: dict[str, list[DemoRequest]] = {}
    for request in engine.waiting:
        waiting.setdefault(request.tenant, []).append(request)
    running = Counter(request.tenant for request in engine.running)
    active = [t for t in engine.tenants.values() if running[t.name] or t.name in waiting]
    weights = sum(tenant.weight * WEIGHTS[tenant.traffic_class] for tenant in active) or 1.0
    served = sum(tenant.served for tenant in engine.tenants.values()) or 1.0
    for tenant in engine.tenants.values():
        queue = waiting.get(tenant.name, [])
        due = tenant.weight * WEIGHTS[tenant.traffic_class] / weights if tenant in active else 0.0
        yield _tenant(engine, tenant, queue, running[tenant.name], held[tenant.name],
                      due, tenant.served / served)  # fmt: skip


def _tenant(
    engine: DemoEngine, tenant: DemoTenant, queue: list[DemoRequest], running: int, held: int,
    due: float, used: float,
) -> TenantFrame:  # fmt: skip
    return TenantFrame(
        name=tenant.name,
        paused=tenant.paused,
        weight=tenant.weight,
        share_due=due,
        share_used=used,
        waiting=len(queue),
        waiting_tokens=sum(request.prompt + request.max_tokens for request in queue),
        oldest_wait_s=max((engine.now_s - request.arrived_s for request in queue), default=0.0),
        running=running,
        preempted=sum(request.preemptions > 0 for request in queue),
        swapped=0,
        held_blocks=held,
        quota_blocks=NUM_BLOCKS if tenant.weight > 1 else NUM_BLOCKS // 4,
        requests=tenant.requests,
        prompt_tokens=tenant.prompt_tokens,
        cached_tokens=tenant.cached_tokens,
        generated_tokens=int(tenant.generated),
        preemptions=tenant.preemptions,
        recomputed_tokens=tenant.recomputed,
        rejections=dict(tenant.rejections),
        budget_tokens=round(tenant.budget) if tenant.budget_limit else None,
        budget_limit=tenant.budget_limit,
        ttft=tenant.ttft.frame(),
        deadline_misses=tenant.rejections["shed_predicted"],
    )


def _replica(engine: DemoEngine) -> ReplicaFrame:
    return ReplicaFrame(
        epoch=1, step=engine.steps, running=len(engine.running), num_blocks=NUM_BLOCKS,
        held_blocks=engine.held_blocks, evictable_blocks=(NUM_BLOCKS - engine.held_blocks) // 2,
        fenced_blocks=0, host_blocks=0, held_host_blocks=0, draining=False, last_step_age_s=0.012,
        plan_age_s=0.004, cost_factors=(1.02, 1.08), cost_sigmas=(0.04, 0.09), infeasible_steps=0,
        expected_step_s=0.012,
    )  # fmt: skip


def _executor(engine: DemoEngine) -> ExecutorFrame:
    return ExecutorFrame(
        child="executor.0.0", steps=engine.steps, tokens=engine.steps * 60,
        step_time=engine.step_time.frame(), weights_bytes=270_000_000,
        kv_bytes=NUM_BLOCKS * 737_280, block_bytes=737_280, threads=2, kernel_path="cpp",
        device_name="demonstration", model="toy-135m",
    )  # fmt: skip
