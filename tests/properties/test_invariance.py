"""P13 and P15: what must not matter does not, and what must help helps.

Names of tenants and the scale of weights change no step; more weight means no less service, more
capacity no fewer promises kept. A failure names its seed.
"""

from random import Random

import numpy as np
import pytest

from core.config.scheduling import PolicyConfig
from core.tenancy.classes import NUM_CLASSES, TrafficClass
from tests.support.loads.fair_load import CLASSES, Load, Plan
from tests.support.loads.watched_fairness import limits_of, plain_classes, watched_engine
from tests.support.scheduler.checked_engine import make_settings

SEEDS = range(12)
NUM_CAPACITY_SEEDS = 20
WEIGHTS = (0.5, 1.0, 2.0, 3.0, 4.0, 7.0, 8.0)


def run_seed(seed: int) -> None:
    """P13 for one load, P15 for two weights."""
    check_names_and_scale(seed)
    check_weights(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_names_and_scale_of_weights_change_nothing(seed: int) -> None:
    """P13: with other names, and with all weights times a power of two, each step is the same."""
    check_names_and_scale(seed)


def check_names_and_scale(seed: int) -> None:
    """Run a load three times, and compare every step."""
    plain = Load(seed).run(80)
    renamed = Load(seed, Plan(names="wxyz")).run(80)
    scaled = Load(seed, Plan(scale=2.0 ** (seed % 12 - 5))).run(80)
    for other in (renamed, scaled):
        for mine, theirs in zip(plain.notes, other.notes, strict=True):
            assert np.array_equal(mine.charged, theirs.charged), seed


def backlogged(weights: tuple[float, float], num_steps: int, seed: int = 3) -> Load:
    """Run two tenants with endless prompts, alone in one class."""
    load = Load(seed)
    limits = limits_of(plain_classes(1, 1, 1, 1), dict(zip("ab", weights, strict=True)))
    settings = make_settings(
        max_num_batched_tokens=64,
        max_num_partial_prefills=16,
        policy="headrace",
        tuning=PolicyConfig(charge="tokens", tenant_window_tokens=100, quantum_tokens=16),
        limits=limits,
    )
    load.engine, load.policy = watched_engine(settings, 4000)
    for _ in range(num_steps):
        for tenant in (0, 1):
            if load.num_waiting((tenant + 1) * NUM_CLASSES + TrafficClass.STANDARD) < 2:
                load.submit(tenant, TrafficClass.STANDARD)
        load.engine.step()
    return load


def test_more_weight_never_means_less_service() -> None:
    """P15: of two tenants that always want more, the one with the greater weight has more of the
    same number of steps, but for a window and a quantum; and in proportion in the end.
    """
    shares = []
    for weight in (0.5, 1.0, 2.0, 4.0, 8.0):
        load = backlogged((weight, 1.0), 150)
        by_tenant = load.policy.shares.charged.reshape(-1, NUM_CLASSES).sum(axis=1)
        shares.append(by_tenant[1] / by_tenant.sum())
        assert abs(shares[-1] - weight / (weight + 1)) < 0.05, weight
    assert shares == sorted(shares)


def check_weights(seed: int) -> None:
    """Compare the service of a tenant with a lighter and a heavier weight."""
    light, heavy = sorted(Random(seed).sample(WEIGHTS, 2))
    served = []
    for weight in (light, heavy):
        load = backlogged((weight, 1.0), 60, seed)
        by_tenant = load.policy.shares.charged.reshape(-1, NUM_CLASSES).sum(axis=1)
        served.append(int(by_tenant[1]))
    shares = load.policy.shares
    slack = shares.tenant_window + load.grant_units()
    assert served[0] <= served[1] + slack, (seed, light, heavy)


def test_more_capacity_never_means_fewer_promises_kept() -> None:
    """P15: over many seeds, with larger steps at least as many first tokens come in time."""
    kept = [
        sum(_num_in_time(seed, size) for seed in range(NUM_CAPACITY_SEEDS)) for size in (16, 32, 64)
    ]
    assert kept == sorted(kept)
    assert kept[0] < kept[-1]


def _num_in_time(seed: int, num_tokens: int) -> int:
    """Return how many first tokens come in time at an arrival every two steps."""
    load = Load(seed)
    promised = plain_classes(1, 1, 1, 1, ttft_ms=40)
    settings = make_settings(
        max_num_batched_tokens=num_tokens, policy="headrace", limits=limits_of(promised, {})
    )
    load.engine, load.policy = watched_engine(settings, 4000)
    for _ in range(40):
        load.submit(load.random.randrange(4), load.random.choice(CLASSES))
        load.engine.step()
        load.engine.step()
    load.engine.run()
    return sum(0 < r.first_token_ns <= r.ttft_deadline_ns for r in load.requests)
