"""Random loads under policy headrace, for properties of fairness.

Owns: an engine whose tenants come and go at random while some flows always want more, all from one
seed, and what may be fixed of it. Never knows: what must hold.
"""

from dataclasses import dataclass
from random import Random

from core.config.scheduling import PolicyConfig
from core.policy.cost_model import CostBasis
from core.request import Request
from core.scheduler import events as ev
from core.tenancy.classes import NUM_CLASSES, TrafficClass
from tests.support.loads.watched_fairness import StepNote, limits_of, plain_classes, watched_engine
from tests.support.scheduler.checked_engine import make_settings

TENANTS = "abcd"
LONGEST_PROMPT = 120
NUM_STEPS = 150
NAP = range(40, 90)  # steps
BASIS = CostBasis(2e6, 1000.0, 0.5, 0.5, 500.0)
CLASSES = (TrafficClass.INTERACTIVE, TrafficClass.STANDARD, TrafficClass.BATCH)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What may be fixed of a load; the rest is random."""

    names: str = TENANTS
    scale: float = 1.0  # of all weights
    kv_price: float = 0.0
    num_blocks: int = 0


class Load:
    """A random engine under random arrivals and cancellations that keep some flows busy."""

    def __init__(self, seed: int, fixed: Plan = Plan()) -> None:
        random = self.random = Random(seed)
        self.names = fixed.names
        self.weights = [fixed.scale * random.choice([0.5, 1, 2, 3, 7]) for _ in TENANTS]
        self.class_weights = [fixed.scale * random.choice([1, 2, 4]) for _ in TrafficClass]
        self.model = BASIS if random.random() < 0.5 else None
        self.quantum = random.choice([16, 32, 64])
        self.num_tokens = random.choice([32, 64])
        num_blocks = random.choice([60, 4000])
        tuning = PolicyConfig(
            tenant_window_tokens=random.choice([0, 50, 200, 600]),
            class_window_ms=random.choice([0, 1, 3]),
            quantum_tokens=self.quantum,
            kv_price=fixed.kv_price,
        )
        settings = make_settings(
            max_num_seqs=24,
            max_num_batched_tokens=self.num_tokens,
            max_num_partial_prefills=16,
            policy="headrace",
            poison_crashes=random.choice([1, 2]),
            tuning=tuning,
            limits=limits_of(
                plain_classes(*self.class_weights, preemptible=True),
                dict(zip(self.names, self.weights, strict=True)),
            ),
        )
        self.engine, self.policy = watched_engine(
            settings, fixed.num_blocks or num_blocks, self.model
        )
        self.requests: list[Request] = []
        self.busy = {
            (tenant, each)
            for tenant in range(len(TENANTS))
            for each in CLASSES
            if random.random() < 0.7
        }
        nap = random.choice(CLASSES)
        self.napping = {
            (tenant, each) for tenant, each in self.busy if each is nap or random.random() < 0.2
        }
        self.num_steps = 0

    def run(self, num_steps: int = NUM_STEPS) -> "Load":
        """Step, with a deep queue for busy flows and a thin one for the others.

        All tenants are known from the start: a window is one of the heaviest that is.
        """
        for _ in range(num_steps):
            self.arrive()
            self.engine.step()
            self.policy.check_integrity()
        return self

    def arrive(self) -> None:
        """Let requests come and go; some of the busy flows want nothing for a while."""
        self.num_steps += 1
        awake = self.busy - self.napping if self.num_steps in NAP else self.busy
        if not self.requests:
            for tenant in range(len(TENANTS)):
                self.submit(tenant, TrafficClass.ADMINISTRATIVE)
        for tenant in range(len(TENANTS)):
            for each in CLASSES:
                queued = self.num_waiting((tenant + 1) * NUM_CLASSES + each)
                if (tenant, each) in awake and queued < 3:
                    for _ in range(3):
                        self.submit(tenant, each)
                elif self.random.random() < 0.02:
                    self.submit(tenant, each)
        if self.random.random() < 0.1:
            self.engine.tell(ev.Abort(self.random.choice(self.requests).request_id))

    def num_waiting(self, flow: int) -> int:
        flows = self.policy.flows
        return int(flows.num_waiting[flow]) if flow < len(flows) else 0

    def submit(self, tenant: int, traffic_class: TrafficClass) -> Request:
        prompt = [self.random.randrange(10, 50) for _ in range(self.random.randint(1, 120))]
        request = self.engine.make_request(
            len(self.requests) + 1,
            prompt,
            self.random.randint(1, 12),
            tenant=self.names[tenant],
            traffic_class=traffic_class,
        )
        self.requests.append(request)
        return self.engine.submit(request)

    @property
    def notes(self) -> list[StepNote]:
        return self.policy.notes

    def grant_units(self) -> int:
        """The largest charge of a grant."""
        prices = self.policy.shares.book.prices
        return prices.prefill(self.quantum, LONGEST_PROMPT)
