"""What steps cost while the engine runs: samples of them, and a model of the machine from these.

Owns: every SAMPLE_EVERY-th step as sums and a time, the last few thousand of them, and what passed
between steps. Never knows: what a prediction is for. The fit is that of the executor's calibration,
over running steps in their real mixture; it is made when somebody asks, never in a step.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_MS
from core.policy.calibration import MeasuredStep, fit_basis
from core.policy.cost_model import CostBasis, StepWork
from core.scheduler.plan import RecordArray
from core.scheduler.plan_rows import work_of_rows

SAMPLE_EVERY = 8  # steps
MAX_SAMPLES = 2048
MIN_SAMPLES = 50  # for a fit of five prices
LONGEST_PAUSE_NS = 5 * NS_PER_MS  # between two steps that follow each other


@dataclass(frozen=True, slots=True)
class MachineModel:
    """What the sampled steps say of the machine."""

    basis: CostBasis
    sigma: float  # standard deviation of ln(measured / basis)
    overhead_ns: int  # from a result to the next, besides the execution; the median


class StepSamples:
    """The last samples of one engine."""

    def __init__(self) -> None:
        """Start with none."""
        self._num_steps = 0
        self._num_samples = 0
        self._durations_ns = np.zeros(MAX_SAMPLES, np.int64)
        self._works: list[StepWork] = [StepWork()] * MAX_SAMPLES
        self._overheads_ns: npt.NDArray[np.int64] = np.zeros(MAX_SAMPLES, np.int64)
        self._num_overheads = 0

    def add(
        self, rows: RecordArray, planned_ns: int, duration_ns: int, last_result_ns: int, now_ns: int
    ) -> None:
        """Note a step over `rows`, PLAN_ROW[n]; only some are looked at.

        Of a step that was planned long after the result before it the time between says nothing.
        """
        self._num_steps += 1
        if self._num_steps % SAMPLE_EVERY:
            return
        place = self._num_samples % MAX_SAMPLES
        self._works[place] = work_of_rows(rows)
        self._durations_ns[place] = duration_ns
        self._num_samples += 1
        if last_result_ns and planned_ns - last_result_ns < LONGEST_PAUSE_NS:
            overhead_ns = now_ns - last_result_ns - duration_ns
            self._overheads_ns[self._num_overheads % MAX_SAMPLES] = overhead_ns
            self._num_overheads += 1

    def machine(self) -> MachineModel | None:
        """Fit a model; None while there are too few samples."""
        count = min(self._num_samples, MAX_SAMPLES)
        if count < MIN_SAMPLES:
            return None
        works, times_ns = self._works[:count], self._durations_ns[:count]
        pairs = zip(works, times_ns.tolist(), strict=True)
        fitted = fit_basis([MeasuredStep(work, time_ns) for work, time_ns in pairs])
        predicted = np.array([max(1, fitted.duration_ns(work)) for work in works])
        residuals = np.log(np.maximum(times_ns, 1) / predicted)
        level = float(times_ns.sum() / predicted.sum())  # relative errors favour the short steps
        known = self._overheads_ns[: min(self._num_overheads, MAX_SAMPLES)]
        return MachineModel(
            CostBasis(*(price * level for price in fitted)),
            float(residuals.std()),
            int(np.median(known)) if len(known) else 0,
        )
