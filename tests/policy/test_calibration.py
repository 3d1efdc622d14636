"""A basis is found from measured steps, and what it misses is learned without being thrown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy.calibration import (
    FACTOR_MAX,
    CalibratedCostModel,
    CostModels,
    MeasuredStep,
    MovingFactor,
    fit_basis,
)
from core.policy.cost_model import CostBasis, StepWork

TRUE = CostBasis(5e6, 40_000.0, 30.0, 200.0, 15_000.0)
SHAPES = (
    StepWork(num_decodes=1, decode_context=32),
    StepWork(num_decodes=32, decode_context=1024),
    StepWork(num_decodes=8, decode_context=8192),
    StepWork().with_prefill(32, 0),
    StepWork().with_prefill(128, 0),
    StepWork().with_prefill(64, 1024),
)
WORKS = st.builds(
    lambda tokens, context, decodes, depth: StepWork(
        num_decodes=decodes, decode_context=decodes * depth
    ).with_prefill(tokens, context),
    st.integers(0, 512),
    st.integers(0, 4000),
    st.integers(0, 64),
    st.integers(0, 4000),
)


def test_a_basis_is_found_again_from_its_own_times() -> None:
    """Six shapes tell the five prices apart."""
    found = fit_basis([MeasuredStep(work, TRUE.duration_ns(work)) for work in SHAPES])
    assert np.allclose(found, TRUE, rtol=1e-3)


@given(st.lists(st.floats(0.2, 5.0), min_size=len(SHAPES), max_size=len(SHAPES)))
def test_no_price_is_negative_however_times_scatter(noise: list[float]) -> None:
    """A basis with a negative price would call more work faster."""
    steps = [
        MeasuredStep(work, round(TRUE.duration_ns(work) * factor))
        for work, factor in zip(SHAPES, noise, strict=True)
    ]
    basis = fit_basis(steps)
    assert basis.is_usable, basis
    errors = [basis.duration_ns(s.work) / s.duration_ns - 1 for s in steps]
    assert np.square(errors).sum() <= len(SHAPES), "no better than a basis of zeros"


@given(
    work=WORKS,
    more=st.integers(1, 100),
    factors=st.tuples(st.floats(0.2, 5.0), st.floats(0.2, 5.0)),
)
def test_more_work_never_takes_less_time(
    work: StepWork, more: int, factors: tuple[float, float]
) -> None:
    """Not even where the two factors meet: the first prompt token of a step."""
    model = CalibratedCostModel(TRUE)
    model.decode_only.factor, model.mixed.factor = factors
    now = model.duration_ns(work)
    assert model.duration_ns(work.with_prefill(more, 0)) >= now
    decode = work._replace(num_decodes=work.num_decodes + 1)
    assert model.duration_ns(decode) >= now


@pytest.mark.parametrize("slowdown", [0.3, 1.5, 4.0])
def test_a_lasting_change_is_learned(slowdown: float) -> None:
    """From the scatter of an idle machine to other work on it, within 200 steps."""
    random, factor = np.random.default_rng(1), MovingFactor()
    for _ in range(200):
        factor.observe(random.lognormal(0, 0.02))
    for _ in range(200):
        factor.observe(slowdown * random.lognormal(0, 0.02))
    assert factor.factor == pytest.approx(slowdown, rel=0.05)


@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.15])
def test_scatter_is_measured(sigma: float) -> None:
    """It becomes the margin that is kept."""
    random, factor = np.random.default_rng(2), MovingFactor()
    for ratio in random.lognormal(0, sigma, 2000):
        factor.observe(ratio)
    assert factor.sigma == pytest.approx(sigma, rel=0.25)


@pytest.mark.parametrize("at", [0, 5, 500])
def test_outliers_do_not_throw_the_factor(at: int) -> None:
    """Neither the first steps of all nor later ones."""
    random, factor = np.random.default_rng(3), MovingFactor()
    for _ in range(at):
        factor.observe(random.lognormal(0, 0.05))
    before = factor.factor
    factor.observe(30.0)
    assert factor.factor < before * 1.04
    assert factor.sigma < 0.1


def test_a_factor_is_bounded() -> None:
    """A machine that stands still does not make every later step impossible."""
    factor = MovingFactor()
    for _ in range(1000):
        factor.observe(1e6)
    assert factor.factor == pytest.approx(FACTOR_MAX)


def test_regimes_learn_apart() -> None:
    """Steps with prompts say nothing about steps of decodes alone."""
    model = CalibratedCostModel(TRUE)
    for _ in range(300):
        model.measured(SHAPES[3], 2 * TRUE.duration_ns(SHAPES[3]))
        model.measured(SHAPES[1], TRUE.duration_ns(SHAPES[1]))
    assert model.mixed.factor == pytest.approx(2.0, rel=0.02)
    assert model.decode_only.factor == pytest.approx(1.0, rel=0.02)


def test_each_replica_has_its_own_model() -> None:
    """Without a basis there is no prediction; a new executor starts anew."""
    models = CostModels()
    assert models.of(0) is None
    assert models.typical() is None
    models.calibrate(0, TRUE)
    models.calibrate(1, CostBasis())
    assert models.of(1) is None
    learned = models.calibrated(0)
    assert learned is not None
    learned.measured(SHAPES[0], 10**9)
    models.calibrate(0, TRUE)
    assert models.of(0) is not learned


def test_predicted_and_measured_times_are_summed_over_all_instances_of_an_executor() -> None:
    """As they were predicted before each step taught something; counters never fall."""
    models = CostModels()
    models.calibrate(0, TRUE)
    first, work = models.calibrated(0), SHAPES[1]
    assert first is not None
    predicted_ns = []
    for _ in range(3):
        predicted_ns.append(first.duration_ns(work))
        first.measured(work, 2 * TRUE.duration_ns(work))
    models.calibrate(0, TRUE)
    second = models.calibrated(0)
    assert second is not None
    assert second.measured_ns == 6 * TRUE.duration_ns(work)
    assert second.predicted_ns == pytest.approx(sum(predicted_ns), abs=3)
    assert predicted_ns == sorted(predicted_ns)


def test_a_given_model_serves_until_a_replica_brings_its_own() -> None:
    """Simulations know their machine exactly."""
    models = CostModels(TRUE)
    assert models.of(3) is TRUE
    assert models.calibrated(3) is None
    models.calibrate(3, CostBasis(step_ns=1.0))
    assert models.of(3) is models.calibrated(3)


@pytest.mark.parametrize(("slow_share", "beyond"), [(0.0, 0.2), (0.01, 0.6)])
def test_the_tail_is_what_few_steps_exceed(slow_share: float, beyond: float) -> None:
    """Even scatter stays below a fifth; a machine that stumbles now and then asks for more."""
    random, factor = np.random.default_rng(4), MovingFactor()
    for ratio in random.lognormal(0, 0.05, 6000):
        factor.observe(ratio * (1.6 if random.random() < slow_share else 1.0))
    assert abs(np.exp(factor.tail) - 1 - beyond) <= 0.15
