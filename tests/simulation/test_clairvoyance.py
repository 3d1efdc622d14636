"""Oracles and the bound above everybody: what they are worth is that nobody gets past the bound."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy.cost_model import StepWork
from core.simulation.clairvoyant import ORDERS, kept_in_time, prepare_order
from core.simulation.metrics import request_times
from core.simulation.policies import BASELINES, prepare
from core.simulation.relaxation import fastest_rate, most_on_time, most_promises_kept
from core.simulation.run import Simulation
from core.simulation.workload import Promise, Workload
from core.tenancy.classes import TrafficClass
from tests.support.loads.workloads import RoundMachine, make_workload, simulated_settings

FAST, SLOW = TrafficClass.INTERACTIVE, TrafficClass.BATCH
PROMISES = {FAST: Promise(1.0, 0.06), SLOW: Promise(4.0, 0.4)}
MAX_TOKENS = 4096
JOBS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=7)


def overload(seed: int, num_requests: int = 120) -> Workload:
    """Return about twice of what the round machine can do, long and short prompts."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(40.0, num_requests))
    prompts = random.choice([50, 200, 600, 1800], num_requests)
    outputs = random.integers(1, 12, num_requests)
    rows = list(zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True))
    kinds = [(FAST, SLOW)[each] for each in random.integers(0, 2, num_requests).tolist()]
    return make_workload(rows, classes=kinds, promises=PROMISES)


def is_feasible(jobs: list[tuple[int, int]]) -> bool:
    """Tell whether all jobs of (due, work) are on time in the order of their deadlines."""
    ends = np.cumsum([work for _, work in sorted(jobs)])
    return all(end <= due for end, (due, _) in zip(ends, sorted(jobs), strict=True))


@given(JOBS)
def test_the_bound_on_one_machine_is_exact(jobs: list[tuple[int, int]]) -> None:
    """No larger set of jobs is on time, and one of that size is."""
    due, work = np.array(jobs, float).T
    best = max(
        size
        for size in range(len(jobs) + 1)
        if any(is_feasible(list(chosen)) for chosen in combinations(jobs, size))
    )
    assert most_on_time(due, work) == best


@given(JOBS)
def test_dropping_the_longest_is_best_when_all_are_there(jobs: list[tuple[int, int]]) -> None:
    """Without later arrivals the plan keeps as many as the exact bound, and all are on time."""
    due, work = np.array(jobs, float).T
    nothing = np.zeros(len(jobs))
    kept = kept_in_time(nothing, due, work, np.ones(len(jobs)))
    assert np.count_nonzero(kept) == most_on_time(due, work)
    assert is_feasible([job for job, is_kept in zip(jobs, kept, strict=True) if is_kept])


def test_a_plan_knows_what_is_still_to_come() -> None:
    """A long job that was there first is dropped for two short ones that come later."""
    arrivals, due = np.array([0.0, 1.0, 2.0]), np.array([10.0, 11.0, 12.0])
    kept = kept_in_time(arrivals, due, np.array([9.0, 4.0, 4.0]), np.ones(3))
    assert kept.tolist() == [False, True, True]


def test_quarters_of_lengths_are_dropped_in_turn() -> None:
    """Twelve seconds of jobs are due in nine: two of the longest go if nobody asks for evenness,
    else one of the long half, then one of the short.
    """
    nothing, due, worth = np.zeros(8), np.full(8, 9.0), np.ones(8)
    work, quarter = np.array([1.0] * 4 + [2.0] * 4), np.array([0] * 4 + [2] * 4)
    kept = kept_in_time(nothing, due, work, worth)
    assert np.bincount(quarter[~kept], minlength=3).tolist() == [0, 0, 2]
    kept = kept_in_time(nothing, due, work, worth, quarter)
    assert np.bincount(quarter[~kept], minlength=3).tolist() == [1, 0, 1]


def test_the_fastest_rate_is_that_of_the_largest_step() -> None:
    """10 ms a step and 0.1 ms a token: 100 tokens in 20 ms, 1,000 in 110 ms."""
    assert fastest_rate(RoundMachine(), 100) == pytest.approx(5000.0)
    assert fastest_rate(RoundMachine(), 1000) == pytest.approx(9090.9, rel=1e-4)
    assert RoundMachine().duration_ns(StepWork().with_prefill(1000, 0)) == 110_000_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_keeps_more_promises_than_the_relaxation(seed: int) -> None:
    """All policies and all oracles, in an overload; the best comes near enough."""
    workload, settings = overload(seed), simulated_settings()
    bound = most_promises_kept(workload, settings.hardware, MAX_TOKENS)
    kept = {}
    runs = [(name, *prepare(name, settings)) for name in BASELINES]
    runs += [(name, *prepare_order(name, workload, settings)) for name in ORDERS]
    for name, chosen, policy in runs:
        kept[name] = request_times(Simulation(chosen, workload, policy).run()).kept.sum()
    assert set(ORDERS) < set(kept)
    assert max(kept.values()) <= bound < len(workload), (seed, kept, bound)
    assert max(kept[name] for name in ORDERS) >= 0.6 * bound, (seed, kept, bound)
    assert max(kept[name] for name in ORDERS) >= kept["gap-edf"], (seed, kept)
