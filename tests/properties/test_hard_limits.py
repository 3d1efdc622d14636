"""P7: hard limits under random histories: no event exceeds them, and they never end progress.

Each seed draws limits of classes and tenants, then arrivals, cancels, crashes, pauses and steps.
After every event all that runs and waits is counted anew and compared with the limits.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from core.arrival_limits import blocks_of
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.scheduler import events as ev
from core.scheduler.plan import OutputKind
from core.simulation.modelled_executor import StepModel
from core.tenancy.classes import NUM_CLASSES, ClassConfig, ClassesConfig, TrafficClass
from core.tenancy.tenants import TenantConfig
from core.token_rate import TokenRate
from tests.support.scheduler.checked_engine import NS_PER_S, CheckedEngine, make_settings

NUM_SEEDS = 12
NUM_EVENTS = 120
NUM_BLOCKS = 40
MAX_NUM_SEQS = 6
TENANTS = ("a", "b", "c")
SETTLED = frozenset({RequestStatus.FINISHED_SHED, RequestStatus.FINISHED_ERROR})


def random_class(rng: Random, *, preemptible: bool) -> ClassConfig:
    """Return a class with some limits."""
    max_seqs = rng.choice((0, 0, 1, 2))
    return ClassConfig(
        max_seqs=max_seqs,
        reserved_seqs=rng.choice((0, 1, 2)),
        max_kv_fraction=rng.choice((1.0, 0.5, 0.25)),
        max_prompt_tokens=rng.choice((0, 0, 12)),
        preemptible=preemptible,
        sheddable=False,
    )


def random_tenant(rng: Random, name: str) -> TenantConfig:
    """Return a tenant with some limits."""
    rate = rng.choice((0, 600, 6000))
    return TenantConfig(
        name=name,
        max_concurrency=rng.choice((0, 1, 2)),
        max_queued_requests=rng.choice((0, 3)),
        max_queued_tokens=rng.choice((0, 100)),
        kv_quota_fraction=rng.choice((1.0, 0.25)),
        replicas=rng.choice(((), (0,), (1,))),
        tokens_per_minute=rate,
        burst_tokens=rate and rng.choice((40, 200)),
    )


@dataclass
class Usage:
    """What a request that was let in has cost its budget."""

    arrived_ns: int
    request: Request

    def tokens(self) -> int:
        """Return what it has reserved, or what it has used when it has ended."""
        request = self.request
        if not request.status.is_finished:
            return request.prompt_len + request.max_tokens
        if request.status in SETTLED or not request.first_start_ns:
            return 0
        return request.num_tokens


@dataclass
class History:
    """One random history."""

    seed: int
    rng: Random = field(init=False)
    requests: list[Request] = field(default_factory=list)
    usages: dict[str, list[Usage]] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        rng = self.rng = Random(self.seed)
        classes = {c.label: random_class(rng, preemptible=c == 2) for c in TrafficClass}
        self.limits = Limits(
            ClassesConfig(**classes), {name: random_tenant(rng, name) for name in TENANTS}
        )
        settings = make_settings(
            policy="headrace",
            max_num_seqs=MAX_NUM_SEQS,
            pipeline_depth=rng.choice((1, 2)),
            limits=self.limits,
        )
        self.engine = CheckedEngine(
            settings, num_blocks=NUM_BLOCKS, num_replicas=2, model=StepModel(NS_PER_S // 20, 0)
        )
        for replica in (0, 1):
            self.engine.start(replica)
            self.engine.plan(replica)

    def submit(self) -> None:
        """Let a burst of requests arrive."""
        rng = self.rng
        for _ in range(rng.randint(1, 6)):
            number = len(self.requests) + 1
            prompt = [10 + number, *(rng.randint(10, 49_000) for _ in range(rng.randint(0, 15)))]
            request = self.engine.make_request(
                number,
                prompt,
                rng.randint(1, 24),
                tenant=rng.choice(TENANTS),
                traffic_class=TrafficClass(rng.randrange(NUM_CLASSES)),
            )
            self.requests.append(self.engine.submit(request))
            if OutputKind.QUEUED in self.engine.transcript(request).kinds:
                usage = Usage(self.engine.clock.now_ns(), request)
                self.usages.setdefault(request.tenant, []).append(usage)

    def cancel(self) -> None:
        """Cancel anything."""
        if self.requests:
            self.engine.tell(ev.Abort(self.rng.choice(self.requests).request_id))

    def crash(self) -> None:
        """Restart an executor."""
        replica = self.rng.randrange(2)
        self.engine.kill(replica)
        self.engine.start(replica)

    def pause(self) -> None:
        """Pause a tenant, or nobody any more."""
        self.paused = frozenset(self.rng.choice(((), ("a",), ("b",))))
        limits = Limits(self.limits.classes, self.limits.tenants, self.paused)
        self.engine.tell(ev.Configure(limits))

    def wait(self) -> None:
        """Let time pass."""
        self.engine.clock.advance_to(self.engine.clock.now_ns() + self.rng.randint(0, NS_PER_S))

    def step(self) -> None:
        """Do some steps."""
        for _ in range(self.rng.randint(1, 4)):
            before = self.started()
            self.engine.step()
            new = [r for r in self.started() if r not in before]
            assert not [r for r in new if r.tenant in self.paused], self.seed

    def started(self) -> list[Request]:
        """Return what runs."""
        return [request for request in self.requests if request.row >= 0]

    def check(self) -> None:
        """Compare all that runs and waits with the limits."""
        self.engine.core.check_integrity()
        for tenant in self.limits.tenants.values():
            self.check_tenant(tenant)
        for replica in (0, 1):
            self.check_replica(replica)

    def check_tenant(self, tenant: TenantConfig) -> None:
        """Check concurrency, queue, placement and budget of one tenant."""
        mine = [request for request in self.requests if request.tenant == tenant.name]
        running = [request for request in mine if request.row >= 0]
        waiting = [request for request in mine if request.status is RequestStatus.WAITING]
        sizes = sum(request.prompt_len + request.max_tokens for request in waiting)
        assert len(running) <= (tenant.max_concurrency or len(running)), self.seed
        assert len(waiting) <= (tenant.max_queued_requests or len(waiting)), self.seed
        assert sizes <= (tenant.max_queued_tokens or sizes), self.seed
        assert {r.replica for r in running} <= set(tenant.replicas or (0, 1)), self.seed
        rate = TokenRate.of(tenant)
        if rate is not None:
            self.check_budget(rate, self.usages.get(tenant.name, []))

    def check_budget(self, rate: TokenRate, usages: list[Usage]) -> None:
        """Check that no window of arrivals has more than burst and rate give."""
        excess_ns = 0  # what the fullest window that ends here has beyond its length
        last_ns = 0
        for usage in usages:
            excess_ns = max(0, excess_ns - (usage.arrived_ns - last_ns))
            excess_ns += rate.time_ns(usage.tokens())
            last_ns = usage.arrived_ns
            assert excess_ns <= rate.burst_ns, self.seed

    def check_replica(self, replica: int) -> None:
        """Check sequences and KV shares of classes and tenants."""
        here = [request for request in self.started() if request.replica == replica]
        held = [0] * NUM_CLASSES
        owned = dict.fromkeys(TENANTS, 0)
        for request in here:
            held[request.traffic_class] += len(request.block_ids)
            owned[request.tenant] += len(request.block_ids)
        for each in TrafficClass:
            config = self.limits.of(each)
            count = sum(request.traffic_class is each for request in here)
            assert count <= (config.max_seqs or count), self.seed
            assert held[each] <= blocks_of(config.max_kv_fraction, NUM_BLOCKS), self.seed
        for name, tenant in self.limits.tenants.items():
            assert owned[name] <= blocks_of(tenant.kv_quota_fraction, NUM_BLOCKS), self.seed

    def finish(self) -> None:
        """Unpause, and let everything come to its end."""
        self.engine.tell(ev.Configure(self.limits))
        for _ in range(20_000):
            if not self.engine.step() and not any(not r.status.is_finished for r in self.requests):
                return
            if not self.engine.unanswered[0] and not self.engine.unanswered[1]:
                self.engine.clock.advance_to(self.engine.clock.now_ns() + NS_PER_S)
            self.check()
        left = [r for r in self.requests if not r.status.is_finished]
        raise AssertionError(f"seed {self.seed}: {len(left)} requests never end, first {left[0]}")


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_no_event_exceeds_a_hard_limit_and_everything_ends(seed: int) -> None:
    """Limits hold after every event, and every request that was let in comes to its end."""
    run_seed(seed)


def run_seed(seed: int) -> None:
    """P7 for the whole history of `seed`."""
    history = History(seed)
    acts = (history.submit, history.step, history.step, history.step, history.cancel, history.wait)
    for _ in range(NUM_EVENTS):
        act = history.rng.choice((*acts, history.pause) if history.rng.random() < 0.2 else acts)
        if history.rng.random() < 0.03:
            act = history.crash
        act()
        history.check()
    history.finish()
