"""P2 over two replicas: the accounts are one for the node, wherever a tenant is served.

How: two tenants of equal weight always want more; one may use replica 0 alone, the other both.
What they were charged is compared over the whole run, in steps of both replicas. The bound is that
of one replica and a step more: on replica 1 a whole step can only be the one tenant's. Were the
accounts by replica, half of replica 0 would be the other's too, and the gap grow with every step.
"""

from random import Random

import pytest

from core.config.scheduling import PolicyConfig
from core.engine_core import policy_settings
from core.policy.cost_model import CostBasis
from core.policy.limits import Limits
from core.request import Request
from core.simulation.engine import SimulatedEngine
from core.tenancy.classes import NUM_CLASSES, TrafficClass
from core.tenancy.tenants import TenantConfig
from tests.support.loads.watched_fairness import (
    WatchedPolicy,
    overshoot,
    plain_classes,
    tenants_of_class,
)
from tests.support.scheduler.checked_engine import make_settings

BOUND, FREE = "bound", "free"  # to replica 0, and to none
REPLICAS = 2
SEEDS = range(6)
BASIS = CostBasis(2e6, 1000.0, 0.5, 0.5, 500.0)
LONGEST_PROMPT = 120
NUM_STEPS = 400
ENOUGH = 4  # times the bound is what a gap would come to that nobody held back
CLASS = TrafficClass.STANDARD


class TwoReplicas:
    """An engine of two equal replicas under one policy, and its two tenants."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.quantum = random.choice([16, 32])
        tuning = PolicyConfig(
            tenant_window_tokens=random.choice([50, 200, 600]),
            quantum_tokens=self.quantum,
            kv_price=0.0,
        )
        tenants = {
            BOUND: TenantConfig(name=BOUND, replicas=(0,)),
            FREE: TenantConfig(name=FREE),
        }
        self.num_tokens = random.choice([32, 64])
        settings = make_settings(
            max_num_seqs=16,
            max_num_batched_tokens=self.num_tokens,
            max_num_partial_prefills=8,
            policy="headrace",
            tuning=tuning,
            limits=Limits(classes=plain_classes(1, 1, 1, 1), tenants=tenants),
        )
        model = BASIS if random.random() < 0.5 else None
        self.policy = WatchedPolicy(policy_settings(settings), model)
        self.engine = SimulatedEngine(
            settings, num_blocks=4000, num_replicas=REPLICAS, policy=self.policy
        )
        for replica in range(REPLICAS):
            self.engine.start(replica)
        self.places: dict[str, set[int]] = {BOUND: set(), FREE: set()}
        self._num_requests = 0

    def run(self) -> "TwoReplicas":
        """Step with a deep queue for both."""
        live: dict[str, list[Request]] = {BOUND: [], FREE: []}
        for _ in range(NUM_STEPS):
            for tenant, requests in live.items():
                requests[:] = [each for each in requests if not each.status.is_finished]
                while sum(each.replica < 0 for each in requests) < 6:
                    requests.append(self._submit(tenant))
                self.places[tenant] |= {each.replica for each in requests} - {-1}
            self.engine.step()
            self.policy.check_integrity()
        return self

    def _submit(self, tenant: str) -> Request:
        self._num_requests += 1
        prompt = [self.random.randrange(10, 50) for _ in range(self.random.randint(1, 120))]
        request = self.engine.make_request(
            self._num_requests,
            prompt,
            self.random.randint(1, 12),
            tenant=tenant,
            traffic_class=CLASS,
        )
        return self.engine.submit(request)

    def charges(self) -> tuple[int, int]:
        """What the two were charged in all: the one bound to replica 0, and the free one."""
        charged = self.policy.notes[-1].charged
        bound, free = (charged[tenant * NUM_CLASSES + CLASS] for tenant in self._tenants())
        return int(bound), int(free)

    def width(self) -> int:
        """How far the two came apart at the worst, in charge, between any two steps."""
        charged = tenants_of_class(self.policy.notes, CLASS).charged
        bound, free = self._tenants()
        lead = charged[:, free] - charged[:, bound]
        return int(lead.max() - lead.min())

    def allowed(self) -> int:
        """How far they may."""
        shares, level = self.policy.shares, tenants_of_class(self.policy.notes, CLASS)
        prices, steps = shares.book.prices, slice(0, len(level.charged))
        grant = prices.prefill(self.quantum, LONGEST_PROMPT)
        slack = sum(overshoot(level, steps, tenant, grant) for tenant in self._tenants())
        return 2 * shares.tenant_window + slack + prices.prefill(self.num_tokens, LONGEST_PROMPT)

    def _tenants(self) -> tuple[int, int]:
        names = self.policy.flows.tenant_names
        return names.index(BOUND), names.index(FREE)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tenant_bound_to_one_replica_gets_what_one_of_both_gets(seed: int) -> None:
    """Who may use both is served elsewhere while it is ahead: over the node neither is further
    ahead than the window allows, and nothing is left idle for it.
    """
    load = TwoReplicas(seed).run()
    assert load.places == {BOUND: {0}, FREE: {0, 1}}, seed
    assert load.width() <= load.allowed(), (seed, load.width(), load.allowed())
    assert min(load.charges()) > ENOUGH * load.allowed(), seed
