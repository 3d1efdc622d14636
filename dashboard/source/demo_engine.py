"""A toy engine for demonstrations: tenants that send, a queue by class, a pool of KV blocks.

Owns: a small model in steps of DT_S, with every kind of number the dashboard shows. Never knows:
the real scheduler; nothing here is a measurement. The same seed gives the same engine.
"""

import math
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

from dashboard.frame import Histogram
from dashboard.vocabulary import CLASSES
from ipc.pages import ITL_BUCKETS_S, LATENCY_BUCKETS_S, STEP_BUCKETS_S, TTFT_BUCKETS_S

DT_S = 0.1
BLOCK_TOKENS = 16
NUM_BLOCKS = 4096
MAX_RUNNING = 64
MAX_EVENTS = 1000
STEP_S = 0.028
PROMISED_START_S = {"interactive": 2.0, "standard": 60.0, "administrative": 1.0}
WEIGHTS = {"interactive": 8.0, "standard": 4.0, "batch": 1.0, "administrative": 1.0}
RESERVED_BLOCKS = {"interactive": 409, "administrative": 81}
NAMES = (
    "acme", "beta", "chat", "delta", "echo-labs", "fjord", "globex", "hooli", "initech", "juno",
    "krill", "lumen", "monolith", "nimbus", "orbit", "probe",
)  # fmt: skip


@dataclass(slots=True)
class DemoRequest:
    """One request on its way."""

    number: int
    tenant: str
    traffic_class: str
    prompt: int
    max_tokens: int
    arrived_s: float
    started_s: float = 0.0
    output: float = 0.0
    preemptions: int = 0

    @property
    def blocks(self) -> int:
        """KV blocks that it needs now."""
        return math.ceil((self.prompt + self.output) / BLOCK_TOKENS)


@dataclass(slots=True)
class DemoTenant:
    """One tenant: what it sends, and what was counted for it."""

    name: str
    traffic_class: str
    weight: float
    per_s: float
    prompt: int
    output: int
    budget_limit: int = 0
    budget: float = 0.0
    paused: bool = False
    served: float = 0.0  # fading memory of its service
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: float = 0.0
    preemptions: int = 0
    recomputed: int = 0
    rejections: Counter[str] = field(default_factory=Counter)
    ttft: "Counts" = field(default_factory=lambda: Counts(TTFT_BUCKETS_S))


@dataclass(slots=True)
class Counts:
    """A histogram that grows."""

    bounds_s: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        """Start empty."""
        self.counts = [0] * (len(self.bounds_s) + 1)

    def add(self, value_s: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds_s, value_s)] += times
        self.sum_s += value_s * times

    def frame(self) -> Histogram:
        """Return what was counted so far."""
        return Histogram(tuple(self.counts), self.sum_s)


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """Something that was decided."""

    number: int
    at_s: float
    kind: str
    request: DemoRequest
    reason: str
    measured: float
    threshold: float


class DemoEngine:
    """The model; `advance` moves it to a time."""

    def __init__(self, seed: int, num_tenants: int) -> None:
        """Begin at time 0 with nothing to do."""
        self.random = Random(seed)
        self.now_s = 0.0
        self.steps = 0
        self.paused_classes: set[str] = set()
        self.is_draining = False
        self.tenants = {tenant.name: tenant for tenant in self._make_tenants(num_tenants)}
        self.waiting: list[DemoRequest] = []
        self.running: list[DemoRequest] = []
        self.events: deque[DemoEvent] = deque(maxlen=MAX_EVENTS)
        self.num_events = 0
        self.finished = 0
        self.leftovers: Counter[str] = Counter()
        self.ttft, self.itl = Counts(TTFT_BUCKETS_S), Counts(ITL_BUCKETS_S)
        self.step_time = Counts(STEP_BUCKETS_S)
        self.queue_time = {name: Counts(LATENCY_BUCKETS_S) for name in CLASSES}
        self._numbers = 0

    def advance(self, to_s: float) -> None:
        """Run until `to_s`."""
        while self.now_s + DT_S <= to_s:
            self.now_s += DT_S
            self._arrive()
            self._expire()
            self._start()
            self._compute()

    @property
    def held_blocks(self) -> int:
        """KV blocks in use."""
        return sum(request.blocks for request in self.running)

    def why(self, request: DemoRequest) -> str:
        """Return what holds a waiting request back."""
        if self.tenants[request.tenant].paused or request.traffic_class in self.paused_classes:
            return "paused"
        if len(self.running) >= MAX_RUNNING:
            return "sequences"
        return "memory" if self.held_blocks + request.blocks > NUM_BLOCKS else "window"

    def cancel(self, requests: list[DemoRequest]) -> None:
        """End requests."""
        gone = {request.number for request in requests}
        self.waiting = [each for each in self.waiting if each.number not in gone]
        self.running = [each for each in self.running if each.number not in gone]

    def _make_tenants(self, count: int) -> list[DemoTenant]:
        scale = 12 / max(1, count)
        tenants = []
        for index in range(count):
            again = index // len(NAMES)
            name = NAMES[index % len(NAMES)] + (f"-{again + 1}" if again else "")
            traffic_class = ("interactive", "standard", "batch", "interactive")[index % 4]
            prompt, output = {
                "interactive": (300, 120),
                "standard": (700, 200),
                "batch": (1500, 400),
            }[traffic_class]
            per_s = self.random.uniform(0.3, 1.6) * scale * (0.5 if traffic_class == "batch" else 1)
            limit = self.random.choice((0, 0, 60_000, 200_000))
            weight = self.random.choice((0.5, 1.0, 1.0, 2.0, 4.0))
            tenants.append(
                DemoTenant(name, traffic_class, weight, per_s, prompt, output, limit, limit)
            )
        return tenants

    def _arrive(self) -> None:
        tide = 1.0 + 0.6 * math.sin(self.now_s / 25.0)
        for tenant in self.tenants.values():
            tenant.budget = min(
                tenant.budget_limit, tenant.budget + tenant.budget_limit * DT_S / 60
            )
            if self.random.random() < tenant.per_s * tide * DT_S:
                self._send(tenant)

    def _send(self, tenant: DemoTenant) -> None:
        self._numbers += 1
        prompt = max(8, round(self.random.expovariate(1 / tenant.prompt)))
        output = max(4, round(self.random.expovariate(1 / tenant.output)))
        request = DemoRequest(
            self._numbers, tenant.name, tenant.traffic_class, prompt, output, self.now_s
        )
        tenant.requests += 1
        queued = sum(each.tenant == tenant.name for each in self.waiting)
        if self.is_draining:
            self._refuse(request, "draining", 1, 0)
        elif tenant.budget_limit and prompt + output > tenant.budget:
            self._refuse(request, "tenant_rate", prompt + output, round(tenant.budget))
        elif queued >= 24:
            self._refuse(request, "tenant_queue_full_requests", queued + 1, 24)
        else:
            tenant.budget -= prompt + output if tenant.budget_limit else 0
            self.waiting.append(request)

    def _refuse(
        self,
        request: DemoRequest,
        reason: str,
        measured: float,
        threshold: float,
        kind: str = "reject",
    ) -> None:
        self.tenants[request.tenant].rejections[reason] += 1
        self.note(kind, request, reason, measured, threshold)

    def note(
        self, kind: str, request: DemoRequest, reason: str, measured: float, threshold: float
    ) -> None:
        """Remember what was decided."""
        event = DemoEvent(self.num_events, self.now_s, kind, request, reason, measured, threshold)
        self.events.append(event)
        self.num_events += 1

    def _expire(self) -> None:
        """Shed interactive requests whose promise is lost."""
        for request in list(self.waiting):
            limit_s = PROMISED_START_S.get(request.traffic_class, math.inf)
            waited_s = self.now_s - request.arrived_s
            if request.traffic_class == "interactive" and waited_s > limit_s:
                self.waiting.remove(request)
                self._refuse(request, "shed_predicted", waited_s * 1e3, limit_s * 1e3, "shed")

    def _start(self) -> None:
        """Start whoever is owed most, class first; interactive ones push batch out."""
        rank = {name: index for index, name in enumerate(CLASSES)}
        order = sorted(
            self.waiting,
            key=lambda r: (
                rank[r.traffic_class],
                self.tenants[r.tenant].served / self.tenants[r.tenant].weight,
                r.number,
            ),
        )
        for request in order[:12]:
            tenant = self.tenants[request.tenant]
            if tenant.paused or request.traffic_class in self.paused_classes:
                continue
            if not self._make_room(request):
                break
            self.waiting.remove(request)
            self.running.append(request)
            if not request.started_s:
                request.started_s = self.now_s
                self._count_start(tenant, request)

    def _count_start(self, tenant: DemoTenant, request: DemoRequest) -> None:
        waited_s = self.now_s - request.arrived_s
        self.queue_time[request.traffic_class].add(waited_s)
        ttft_s = waited_s + 0.04 + request.prompt * 8e-5
        self.ttft.add(ttft_s)
        tenant.ttft.add(ttft_s)
        tenant.prompt_tokens += request.prompt
        tenant.cached_tokens += request.prompt // 4
        tenant.served += request.prompt

    def _make_room(self, request: DemoRequest) -> bool:
        fits = self.held_blocks + request.blocks <= NUM_BLOCKS * 0.97
        if fits and len(self.running) < MAX_RUNNING:
            return True
        victims = [each for each in self.running if each.traffic_class == "batch"]
        if request.traffic_class == "batch" or not victims:
            self.leftovers["memory" if not fits else "sequences"] += 40
            return False
        victim = max(victims, key=lambda each: each.started_s)
        self.running.remove(victim)
        self.waiting.append(victim)
        victim.preemptions += 1
        owner = self.tenants[victim.tenant]
        owner.preemptions += 1
        owner.recomputed += victim.prompt + int(victim.output)
        self.note("preempt", victim, "admission", victim.blocks, NUM_BLOCKS - self.held_blocks)
        return False

    def _compute(self) -> None:
        step_s = STEP_S * (0.5 + len(self.running) / MAX_RUNNING) * self.random.uniform(0.9, 1.2)
        steps = max(1, round(DT_S / step_s))
        self.steps += steps
        self.step_time.add(step_s, steps)
        self.itl.add(step_s * self.random.choice((1, 1, 1, 2)), steps * len(self.running) // 4)
        for tenant in self.tenants.values():
            tenant.served *= 0.99
        for request in list(self.running):
            tenant = self.tenants[request.tenant]
            request.output += steps
            tenant.generated += steps
            tenant.served += steps * 2
            if request.output >= request.max_tokens:
                self.running.remove(request)
                self.finished += 1
