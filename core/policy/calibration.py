"""A cost model that knows its machine: measured once, then corrected by every step.

Owns: the fit of a basis to measured steps, and for each replica two moving factors with the scatter
that is left, one for steps of decodes alone and one for steps with prompts. Never knows: how steps
are measured, or who asks for a prediction.

    predicted = factor(regime) · basis(work)

The factors follow what a basis cannot know: other work on the machine, its temperature, shapes that
no basis describes. A fit of all five prices to running steps would not do: in steady load their
columns rise and fall together, and a recursive least-squares fit drifts along what they have in
common. One factor cannot drift; it is learned in logarithms, from residuals that are clipped at
three times their scatter (a Huber estimate), so that an outlier moves it by little, and it is
bounded. Scatter says little of the few slowest steps of a machine with neighbours: their quantile,
the tail, is followed by stochastic approximation (Robbins and Monro 1951), from a guess on: it
sinks to that of a quiet machine within some ten thousand steps.
"""

from collections.abc import Sequence
from itertools import combinations
from math import exp, log, log1p, sqrt
from typing import NamedTuple

import numpy as np

from core.policy.cost_model import CostBasis, CostModel, StepWork

FACTOR_MAX = 8.0  # and at least its reciprocal
FIRST_SIGMA = 0.05  # until enough steps were seen
SIGMA_MIN = 0.01
SIGMA_MAX = 0.5
CLIP_SIGMAS = 3.0
FACTOR_MEMORY = 24  # steps that a factor averages over
SIGMA_MEMORY = 96
FIRST_TAIL = 0.4  # measured / predicted − 1, a guess until many steps were seen
TAIL_SHARE = 0.0005  # of steps last longer than the tail says
TAIL_STRIDE = 0.05  # by which a step beyond it lifts the tail, in logarithms
DOUBTFUL_STEPS = 4  # as if so many had agreed with the basis before the first


class MeasuredStep(NamedTuple):
    """A step that was run to be measured."""

    work: StepWork
    duration_ns: int


def fit_basis(steps: Sequence[MeasuredStep]) -> CostBasis:
    """Return the non-negative basis with the least squared relative error over `steps`.

    Non-negative least squares, by looking at every subset of the five columns: the best fit of a
    subset that comes out without a negative price, the best of all of these.
    """
    weights = 1 / np.array([max(1, step.duration_ns) for step in steps])
    columns = np.array([_columns(step.work) for step in steps]) * weights[:, None]
    names = range(columns.shape[1])
    best, best_error = np.zeros(columns.shape[1]), np.inf
    for size in range(1, columns.shape[1] + 1):
        for chosen in combinations(names, size):
            prices, *_ = np.linalg.lstsq(columns[:, chosen], np.ones(len(steps)), rcond=None)
            error = float(np.square(columns[:, chosen] @ prices - 1).sum())
            if prices.min() >= 0 and error < best_error - 1e-12:
                best, best_error = np.zeros(columns.shape[1]), error
                best[list(chosen)] = prices
    return CostBasis(*best.tolist())


def fit_error(basis: CostBasis, steps: Sequence[MeasuredStep]) -> float:
    """Return the root mean square of the relative errors of `basis` over `steps`."""
    errors = [basis.duration_ns(work) / max(1, duration_ns) - 1 for work, duration_ns in steps]
    return float(np.sqrt(np.mean(np.square(errors))))


def _columns(work: StepWork) -> tuple[float, ...]:
    return (1.0, work.num_tokens, work.prefill_pairs, work.decode_context, work.num_decodes)


class MovingFactor:
    """By how much steps differ from the basis, and how much they scatter around that."""

    def __init__(self) -> None:
        """Start in agreement with the basis."""
        self.factor = 1.0
        self.sigma = FIRST_SIGMA
        self.tail = log1p(FIRST_TAIL)  # ln(measured / predicted) that TAIL_SHARE of steps exceed
        self.num_steps = 0
        self._log = 0.0
        self._variance = FIRST_SIGMA**2

    def observe(self, ratio: float) -> None:
        """Take in a step that lasted `ratio` times what the basis says."""
        residual = log(max(ratio, 1e-9)) - self._log
        is_beyond = self.num_steps > FACTOR_MEMORY and residual > self.tail
        self.tail = max(0.0, self.tail + TAIL_STRIDE * (is_beyond - TAIL_SHARE))
        limit = CLIP_SIGMAS * self.sigma
        clipped = min(max(residual, -limit), limit)
        self.num_steps += 1
        weight = 1 / min(self.num_steps + DOUBTFUL_STEPS, FACTOR_MEMORY)
        bound = log(FACTOR_MAX)
        self._log = min(max(self._log + weight * clipped, -bound), bound)
        weight = 1 / min(self.num_steps + SIGMA_MEMORY // 4, SIGMA_MEMORY)
        self._variance += weight * (clipped**2 - self._variance)
        self.factor = exp(self._log)
        self.sigma = min(max(sqrt(self._variance), SIGMA_MIN), SIGMA_MAX)


class CalibratedCostModel:
    """The steps of one replica: a basis times the factor of the regime."""

    def __init__(self, basis: CostBasis) -> None:
        """Start with the basis as it was measured."""
        self.basis = basis
        self.decode_only = MovingFactor()
        self.mixed = MovingFactor()
        self.predicted_ns = 0  # of all steps that were measured, together
        self.measured_ns = 0

    def duration_ns(self, work: StepWork) -> int:
        """Return the time of a step, ns; prompt tokens never make one shorter, whatever the factors
        are.
        """
        basis = self.basis
        decodes_ns = basis.decodes_ns(work)
        alone_ns = self.decode_only.factor * decodes_ns
        if not work.num_prefill_tokens:
            return int(alone_ns)
        return int(max(alone_ns, self.mixed.factor * (decodes_ns + basis.prefill_ns(work))))

    def measured(self, work: StepWork, duration_ns: int) -> None:
        """Take in how long a step with that work took."""
        expected_ns = self.basis.duration_ns(work)
        if expected_ns > 0 and work.num_tokens:
            regime = self.mixed if work.num_prefill_tokens else self.decode_only
            self.predicted_ns += int(regime.factor * expected_ns)
            self.measured_ns += duration_ns
            regime.observe(duration_ns / expected_ns)

    @property
    def tail(self) -> float:
        """By how much the slowest steps with prompts exceed what is predicted, as a share."""
        return exp(self.mixed.tail) - 1

    @property
    def sigma(self) -> float:
        """The relative scatter of steps with prompts, which are those that a limit shapes."""
        return self.mixed.sigma


class CostModels:
    """The cost model of each replica: one for all, or what its executor brought along."""

    def __init__(self, given: CostModel | None = None) -> None:
        """`given` serves for every replica that brings no basis."""
        self._given = given
        self._calibrated: dict[int, CalibratedCostModel] = {}

    def calibrate(self, replica: int, basis: CostBasis) -> None:
        """Start anew with the basis of a replica that has just come up; factors are its own."""
        if basis.is_usable:
            model, known = CalibratedCostModel(basis), self._calibrated.get(replica)
            if known is not None:
                model.predicted_ns, model.measured_ns = known.predicted_ns, known.measured_ns
            self._calibrated[replica] = model

    def of(self, replica: int) -> CostModel | None:
        """Return the model of a replica; None: it is not calibrated, predict nothing."""
        return self._calibrated.get(replica, self._given)

    def typical(self) -> CostModel | None:
        """Return a model for what concerns no one replica."""
        return next(iter(self._calibrated.values()), self._given)

    def calibrated(self, replica: int) -> CalibratedCostModel | None:
        """Return the model that learns, None if the replica has none."""
        return self._calibrated.get(replica)


def fastest(model: CostModel) -> CostModel:
    """Return `model` without what has made its machine slower than its basis for a while."""
    if isinstance(model, CalibratedCostModel) and model.mixed.factor > 1.0:
        return model.basis
    return model
