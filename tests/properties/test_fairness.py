"""Fairness of policy headrace in virtual time, over random loads; a failure names its seed."""

from collections import Counter
from random import Random

import numpy as np
import pytest

from core.config import PolicyConfig
from core.policy.base import Blocked
from core.policy.cost_model import CostBasis
from core.request import Request
from core.scheduler import events as ev
from core.scheduler.plan import StepPlan
from core.tenancy import NUM_CLASSES, TrafficClass
from tests.support.fairness import (
    StepNote,
    WatchedPolicy,
    Widest,
    classes,
    limits_of,
    plain_classes,
    tenants_of_class,
    watched_engine,
    widest,
)
from tests.support.scheduling import make_settings

SEEDS = range(12)
TENANTS = "abcd"
LONGEST_PROMPT = 120
NUM_STEPS = 150
BASIS = CostBasis(2e6, 1000.0, 0.5, 0.5, 500.0)
CLASSES = (TrafficClass.INTERACTIVE, TrafficClass.STANDARD, TrafficClass.BATCH)


class Load:
    """A random engine under random arrivals and cancellations that keep some flows busy."""

    def __init__(self, seed: int, **changes: object) -> None:
        random = self.random = Random(seed)
        weights = [random.choice([0.5, 1.0, 2.0, 3.0, 7.0]) for _ in TENANTS]
        by_class = [random.choice([1.0, 2.0, 4.0]) for _ in CLASSES]
        by_time = random.random() < 0.5
        defaults: dict[str, object] = {
            "scale": 1.0,
            "names": TENANTS,
            "weights": weights,
            "window": random.choice([0, 50, 200, 600]),
            "num_blocks": random.choice([60, 4000]),
            "num_tokens": random.choice([32, 64]),
            "kv_price": random.choice([0.0, 0.2]),
            "quantum": random.choice([16, 32, 64]),
        }
        self.given = given = defaults | changes
        self.names = str(given["names"])
        scale = float(given["scale"])  # type: ignore[arg-type]
        self.weights = [scale * w for w in given["weights"]]  # type: ignore[attr-defined]
        self.class_weights = [scale * w for w in by_class] + [scale]
        tuning = PolicyConfig(
            charge="time" if by_time else "tokens",
            tenant_window_tokens=given["window"],
            class_window_ms=random.choice([0, 1, 3]),
            quantum_tokens=given["quantum"],
            kv_price=given["kv_price"],
        )  # type: ignore[arg-type]
        settings = make_settings(
            max_num_seqs=24,
            max_num_batched_tokens=given["num_tokens"],
            max_num_partial_prefills=16,
            policy="headrace",
            poison_crashes=1,
            tuning=tuning,
            limits=limits_of(
                plain_classes(*self.class_weights, preemptible=True),
                dict(zip(self.names, self.weights, strict=True)),
            ),
        )
        self.model = BASIS if by_time else None
        self.engine, self.policy = watched_engine(
            settings,
            int(given["num_blocks"]),
            self.model,  # type: ignore[call-overload]
        )
        self.requests: list[Request] = []
        self.plans: list[StepPlan] = []
        self.busy = [
            (tenant, each)
            for tenant in range(len(TENANTS))
            for each in CLASSES
            if random.random() < 0.7
        ]

    def run(self, num_steps: int = NUM_STEPS) -> "Load":
        """Step, with a deep queue for busy flows and a thin one for the others.

        All tenants are known from the start: a window is one of the heaviest that is.
        """
        for tenant in range(len(TENANTS)):
            self.submit(tenant, TrafficClass.ADMINISTRATIVE)
        for _ in range(num_steps):
            for tenant in range(len(TENANTS)):
                for each in CLASSES:
                    flow = (tenant + 1) * NUM_CLASSES + each
                    queued = self.num_waiting(flow)
                    if (tenant, each) in self.busy and queued < 3:
                        for _ in range(3):
                            self.submit(tenant, each)
                    elif self.random.random() < 0.02:
                        self.submit(tenant, each)
            if self.requests and self.random.random() < 0.1:
                self.engine.tell(ev.Abort(self.random.choice(self.requests).request_id))
            self.engine.step()
            self.policy.check_integrity()
        return self

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
        return prices.prefill(int(self.given["quantum"]), LONGEST_PROMPT)  # type: ignore[call-overload]


def test_no_tenant_gets_further_ahead_of_another_than_the_bound() -> None:
    """P2 within a class: |ΔS_f/w_f − ΔS_g/w_g| ≤ 2Θ + grants + forced decodes, for random weights,
    windows, arrivals, cancellations and preemptions; somewhere at least half of that is seen.
    """
    worst = Widest(0.0, 1.0)
    for seed in SEEDS:
        load = Load(seed, kv_price=0.0).run()
        theta = load.policy.shares.tenant_window
        weights = [1.0, *load.weights]
        for each in CLASSES:
            level = tenants_of_class(load.notes, each)
            for f in range(1, len(weights)):
                for g in range(1, f):
                    found = widest(level, f, g, weights, theta, load.grant_units())
                    assert found.share <= 1.001, (seed, each, f, g, found)
                    worst = max(worst, found, key=lambda one: one.share)
    print(f"the largest share of the bound is {worst.share:.2f}")
    assert worst.share >= 0.5


def test_no_class_gets_further_ahead_of_another_than_the_bound() -> None:
    """P2 among classes."""
    worst = Widest(0.0, 1.0)
    for seed in SEEDS:
        load = Load(seed, kv_price=0.0).run()
        level = classes(load.notes)
        for f in range(3):
            for g in range(f):
                found = widest(
                    level,
                    f,
                    g,
                    load.class_weights,
                    load.policy.shares.class_window,
                    load.grant_units(),
                )
                assert found.share <= 1.001, (seed, f, g, found)
                worst = max(worst, found, key=lambda one: one.share)
    print(f"the largest share of the bound is {worst.share:.2f}")
    assert worst.share >= 0.5
