"""A machine is recognised from the steps it has run."""

import numpy as np
import pytest

from core.policy.cost_model import CostBasis, StepWork
from core.scheduler.plan import PLAN_ROW, PlanFlag, RecordArray
from core.scheduler.plan_rows import work_of_rows
from core.scheduler.step_samples import (
    LONGEST_PAUSE_NS,
    MIN_SAMPLES,
    SAMPLE_EVERY,
    StepSamples,
)

BASIS = CostBasis(4e6, 2e4, 10.0, 50.0, 1e4)


def plan_rows(*shares: tuple[int, int]) -> RecordArray:
    """Return rows of (new tokens, context); one token is followed by a sample."""
    rows = np.zeros(len(shares), PLAN_ROW)
    rows["flags"] = [PlanFlag.SAMPLE * (tokens == 1) for tokens, _ in shares]
    rows["num_new_tokens"] = [tokens for tokens, _ in shares]
    rows["first_position"] = [context for _, context in shares]
    return rows


def sampled(num_samples: int, sigma: float) -> StepSamples:
    """Return samples of random steps of a machine whose steps scatter."""
    samples, random = StepSamples(), np.random.default_rng(5)
    for number in range(num_samples * SAMPLE_EVERY):
        decodes = [(1, int(random.integers(1, 900))) for _ in range(random.integers(0, 30))]
        prompts = [(int(random.integers(2, 150)), int(random.integers(0, 900)))]
        rows = plan_rows(*decodes, *(prompts if number % 3 or not decodes else []))
        exact_ns = BASIS.duration_ns(work_of_rows(rows))
        duration_ns = int(exact_ns * random.lognormal(-(sigma**2) / 2, sigma))
        samples.add(rows, 10**9, duration_ns, 10**9 - 5, 10**9 + duration_ns + 300_000)
    return samples


def test_a_plan_is_read_as_sums() -> None:
    """One token that is followed by a sample is a decode, all others are chunks of prompts."""
    rows = plan_rows((1, 10), (1, 30), (8, 100), (1, 5))
    rows["flags"][3] = 0
    decodes = StepWork(num_decodes=2, decode_context=40, num_outputs=2)
    assert work_of_rows(rows) == decodes.with_prefill(1, 5).with_prefill(8, 100)


@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_the_machine_is_found_again(sigma: float) -> None:
    """Its times within 3 %, its scatter, and what passed between two steps."""
    machine = sampled(1500, sigma).machine()
    assert machine is not None
    for work in (work_of_rows(plan_rows(*[(1, 400)] * 20)), work_of_rows(plan_rows((100, 300)))):
        ratio = machine.basis.duration_ns(work) / BASIS.duration_ns(work)
        assert ratio == pytest.approx(1.0, abs=0.03), sigma
    assert machine.sigma == pytest.approx(sigma, abs=0.02)
    assert machine.overhead_ns == pytest.approx(300_000, abs=10)


def test_few_samples_are_no_machine() -> None:
    """Five prices want some more."""
    assert sampled(MIN_SAMPLES - 1, 0.0).machine() is None


def test_a_step_after_a_pause_says_nothing_of_the_overhead() -> None:
    """Nothing was there to compute."""
    samples, rows = StepSamples(), plan_rows((1, 5))
    for number in range(MIN_SAMPLES * SAMPLE_EVERY):
        last_ns = 10**9 * number
        samples.add(rows, last_ns + LONGEST_PAUSE_NS, 10, last_ns, last_ns + LONGEST_PAUSE_NS + 99)
    machine = samples.machine()
    assert machine is not None
    assert machine.overhead_ns == 0
