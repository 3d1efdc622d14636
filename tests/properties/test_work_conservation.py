"""P4: no token of a step is left unused while somebody waits, but for a reason that is true.

A random load under tight limits is run. Where a step leaves tokens unused, the load is run again to
the same step, and that is planned without the constraint that a waiting request is said to wait
for. A failure names seed and step.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random

import pytest

from core.config.scheduling import PolicyConfig
from core.policy.base import Blocked
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.scheduler import events as ev
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from core.tenancy.tenants import TenantConfig
from tests.support.loads.watched_fairness import watched_engine
from tests.support.scheduler.checked_engine import make_settings

SEEDS = range(10)
NUM_STEPS = 60
TENANTS = "abc"
CLASSES = (TrafficClass.INTERACTIVE, TrafficClass.STANDARD, TrafficClass.BATCH)
TILE = 4
PAUSED_FROM = 10  # steps
NUM_BLOCKS, BALLAST = 400, 365
OF_LIMITS = frozenset({
    Blocked.CONCURRENCY, Blocked.CLASS_CAP, Blocked.KV_QUOTA, Blocked.PAUSED, Blocked.RESERVE,
})  # fmt: skip
NO_REASON = frozenset({Blocked.NOTHING, Blocked.TOKENS, Blocked.WINDOW, Blocked.DEADLINE_ORDER})
CHECKS_OF_A_REASON = 2
ALONE = (
    Blocked.SEQUENCES, Blocked.PARTIAL_PREFILLS, Blocked.MEMORY, Blocked.CLASS_CAP,
    Blocked.CONCURRENCY, Blocked.KV_QUOTA, Blocked.PAUSED,
)  # fmt: skip
OF_MEMORY = frozenset({Blocked.MEMORY, Blocked.CLAIM, Blocked.HEADROOM})


class Tight:
    """A load under random tight limits, or under limits of which one kind is tight."""

    def __init__(self, seed: int, only: Blocked | None = None) -> None:
        self.seed, self.only = seed, only
        self.random = random = Random(seed)
        self.limits = tight_limits(random) if only is None else single_limits(only)
        num_seqs, num_partial = random.choice([3, 6, 16]), random.choice([1, 16])
        is_full, self.will_pause = random.random() < 0.6, random.random() < 0.5
        if only is not None:
            num_seqs = 3 if only is Blocked.SEQUENCES else 16
            num_partial = 1 if only is Blocked.PARTIAL_PREFILLS else 16
            is_full, self.will_pause = only is Blocked.MEMORY, only is Blocked.PAUSED
        settings = make_settings(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=64,
            max_num_partial_prefills=num_partial,
            pipeline_depth=2,
            policy="headrace",
            kv_headroom_fraction=0.02,
            tuning=PolicyConfig(tile_tokens=TILE, quantum_tokens=16, tenant_window_tokens=100),
            limits=self.limits,
        )
        self.engine, self.policy = watched_engine(settings, NUM_BLOCKS)
        self.ballast: list[int] = []
        if is_full:
            pool = self.engine.core._replicas[0].kv.pool
            self.ballast = pool.allocate(BALLAST, 0).block_ids
        self.waiting: list[Request] = []
        self.num_requests = self.num_arrivals = 0

    def arrive(self) -> None:
        """Let somebody come, at times; once, a tenant is paused right after its last requests."""
        self.num_arrivals += 1
        is_last = self.num_arrivals == PAUSED_FROM and self.will_pause
        for _ in range(6 if is_last else self.random.choice([0, 0, 1, 3])):
            self.num_requests += 1
            request = self.engine.make_request(
                self.num_requests,
                [self.random.randrange(10, 50) for _ in range(self.random.randint(1, 60))],
                self.random.randint(1, 12),
                tenant=self.random.choice(TENANTS),
                traffic_class=self.random.choice(CLASSES),
            )
            self.waiting.append(self.engine.submit(request))
        if is_last:
            self.limits = replace(self.limits, paused=frozenset({"c"}))
            self.engine.tell(ev.Configure(self.limits))

    def answer(self) -> None:
        """Let the step be computed."""
        if self.engine.unanswered[0]:
            self.engine.answer()

    def still_waiting(self) -> list[Request]:
        """Return who waits."""
        waits = (RequestStatus.WAITING, RequestStatus.PREEMPTED, RequestStatus.SWAPPED)
        self.waiting = [request for request in self.waiting if not request.status.is_finished]
        return [request for request in self.waiting if request.status in waits]

    def left(self) -> int:
        """Return the tokens that all steps have left unused while somebody waited."""
        return sum(self.policy.leftovers().values())


def single_limits(only: Blocked) -> Limits:
    """Return limits of which at most one kind binds."""
    free = ClassConfig()
    classes = {each.label: free for each in TrafficClass}
    tenant: dict[str, object] = {}
    if only is Blocked.CLASS_CAP:
        classes["standard"] = ClassConfig(max_seqs=1)
    elif only is Blocked.CONCURRENCY:
        tenant = {"max_concurrency": 1}
    elif only is Blocked.KV_QUOTA:
        tenant = {"kv_quota_fraction": 0.05}
    listed = {name: TenantConfig(name=name, **tenant) for name in TENANTS}  # type: ignore[arg-type]
    return Limits(classes=ClassesConfig(**classes), tenants=listed)


def tight_limits(random: Random) -> Limits:
    """Return limits of which some bind."""
    kinds = [
        ClassConfig(),
        ClassConfig(max_seqs=1),
        ClassConfig(max_kv_fraction=0.1),
        ClassConfig(reserved_seqs=1),
        ClassConfig(preemptible=True),
    ]
    made = {each.label: random.choice(kinds) for each in TrafficClass}
    tenants = [
        {},
        {"max_concurrency": 1},
        {"kv_quota_fraction": 0.05},
        {"kv_quota_fraction": 0.05},
    ]
    listed = {
        name: TenantConfig(name=name, **random.choice(tenants))  # type: ignore[arg-type]
        for name in TENANTS
    }
    return Limits(classes=ClassesConfig(**made), tenants=listed)


def lift(tight: Tight, blocked: Blocked, request: Request) -> None:
    """Take one constraint on `request` away."""
    core, limits = tight.engine.core, tight.limits
    replica, scheduler = core._replicas[0], core._scheduler
    if blocked in OF_LIMITS:
        tight.limits = lifted(limits, blocked, request)
        tight.engine.tell(ev.Configure(tight.limits))
    elif blocked in OF_MEMORY:
        replica.kv.pool.release(tight.ballast)
        tight.ballast = []
    elif blocked is Blocked.SEQUENCES:
        replica._settings = replace(replica._settings, max_num_seqs=replica._settings.num_rows)
    elif blocked is Blocked.PARTIAL_PREFILLS:
        scheduler.settings = replace(scheduler.settings, max_num_partial_prefills=99)
    else:
        raise AssertionError(blocked.name)


def lifted(limits: Limits, blocked: Blocked, request: Request) -> Limits:
    """Return `limits` without the one that keeps `request` from starting."""
    tenant, own = limits.tenant(request.tenant), limits.of(request.traffic_class)
    classes = {each.label: limits.of(each) for each in TrafficClass}
    if blocked is Blocked.PAUSED:
        return replace(limits, paused=frozenset())
    if blocked is Blocked.CONCURRENCY:
        tenant = replace(tenant, max_concurrency=0)
    elif blocked is Blocked.KV_QUOTA:
        tenant = replace(tenant, kv_quota_fraction=1.0)
    elif blocked is Blocked.CLASS_CAP:
        classes[request.traffic_class.label] = replace(own, max_seqs=0, max_kv_fraction=1.0)
    else:
        classes = {name: replace(config, reserved_seqs=0) for name, config in classes.items()}
    tenants = dict(limits.tenants) | {request.tenant: tenant}
    return replace(limits, tenants=tenants, classes=ClassesConfig(**classes))


def replay(like: Tight, num_steps: int) -> Tight:
    """Return a load after so many steps and the arrivals that follow: always the same."""
    tight = Tight(like.seed, like.only)
    for _ in range(num_steps):
        tight.arrive()
        tight.engine.plan()
        tight.answer()
    tight.arrive()
    return tight


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_left_unused_has_a_reason_and_the_reason_is_true(seed: int) -> None:
    """Every waiting request names a constraint; without it the flow goes on or the step fills up,
    or another constraint, that was there as well, is named in its place.
    """
    finished(seed)


@pytest.mark.parametrize("only", ALONE, ids=lambda only: only.name.lower())
def test_where_one_constraint_is_there_without_it_the_flow_goes_on(only: Blocked) -> None:
    """In loads with one kind of constraint, lifting the one that is named is always enough."""
    needed = sum((check_reasons(seed, only).needed for seed in SEEDS[:4]), Counter[int]())
    assert needed[1] == needed.total() > 0, needed


def run_seed(seed: int) -> None:
    """P4 for a load with constraints of all kinds."""
    check_reasons(seed)


@dataclass(frozen=True)
class Findings:
    """What a load has shown."""

    needed: Counter[int] = field(default_factory=Counter)  # how often so many lifts
    met: set[Blocked] = field(default_factory=set)  # reasons of anybody at any step


@cache
def finished(seed: int) -> Findings:
    """Return what the load of a seed has shown; nobody changes it any more."""
    return check_reasons(seed)


def check_reasons(seed: int, only: Blocked | None = None) -> Findings:
    """Check every reason of a load a few times."""
    findings, checked = Findings(), Counter[Blocked]()
    tight = Tight(seed, only)
    for num_steps in range(NUM_STEPS):
        tight.arrive()
        left = tight.left()
        tight.engine.plan()
        is_short = tight.left() - left >= TILE
        for request in tight.still_waiting():
            wait = tight.policy.why(request)
            assert wait is not None, (seed, num_steps)
            findings.met.add(wait.blocked)
            assert not is_short or wait.blocked not in NO_REASON, (seed, num_steps, wait)
            if is_short and checked[wait.blocked] < CHECKS_OF_A_REASON:
                checked[wait.blocked] += 1
                findings.needed[num_lifted(tight, num_steps, request, wait.blocked)] += 1
        tight.answer()
    return findings


def num_lifted(tight: "Tight", num_steps: int, request: Request, blocked: Blocked) -> int:
    """Return how many constraints must be lifted, `blocked` first and then what is said next, until
    the flow of `request` goes on or the step fills up.
    """
    lifts, seed = [blocked], tight.seed
    while True:
        world = replay(tight, num_steps)
        for each in lifts:
            lift(world, each, request)
        running, left = int(world.policy.flows.num_running[request.flow]), world.left()
        world.engine.plan()
        if world.policy.flows.num_running[request.flow] > running or world.left() - left < TILE:
            return len(lifts)
        same = world.engine.core._scheduler.requests[request.request_id]
        wait = world.policy.why(same)
        assert wait is not None, (seed, num_steps, lifts)
        assert wait.blocked not in lifts, (seed, num_steps, lifts, "it was not the reason")
        lifts.append(wait.blocked)


def test_every_kind_of_constraint_was_met() -> None:
    """The loads above are tight in all the ways they claim to be."""
    met = set[Blocked]().union(*(finished(seed).met for seed in SEEDS))
    assert met & {Blocked.MEMORY, Blocked.HEADROOM}, met
    assert met >= {
        Blocked.SEQUENCES, Blocked.CONCURRENCY, Blocked.CLASS_CAP, Blocked.KV_QUOTA,
        Blocked.PAUSED, Blocked.PARTIAL_PREFILLS, Blocked.RESERVE, Blocked.CLAIM,
    }, met  # fmt: skip
