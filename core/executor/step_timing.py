"""What steps of this model cost on this machine: a few short ones are timed once and remembered.

Owns: the shapes that are run, the fingerprint under which the answer is kept. Never knows: plans,
or whose memory the steps run in; the backend is asked as in a step. Ranks of a replica run the same
steps: rank 0 says whether any are needed, and when it is enough.

The shapes tell the five prices of a `CostBasis` apart: few and many decodes, short and long
contexts, prompt chunks with and without tokens before them. The shortest of a few runs counts,
because whatever disturbs a run makes it longer; what disturbs all runs is for the moving factors of
`core.policy.calibration`. A basis that cannot be kept is measured again at the next start, and so
is one that fits its own steps badly: other work came and went while they ran. One that was measured
while other work ran all the time, or with slower kernels, is too slow: a few steps at every start
tell. Steps that are slower than the basis prove nothing, and it is kept. The speed of copies to
host memory takes a few milliseconds, and is measured at every start.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.clock import NS_PER_MS, Clock
from core.executor.backend import Backend
from core.executor.device import SwapCopies
from core.executor.input_batch import InputBatch, Int32Array
from core.executor.sampling_batch import greedy
from core.parallel.ranks import ALONE, Ranks, agree
from core.policy.calibration import MeasuredStep, fit_basis, fit_error
from core.policy.cost_model import CostBasis, StepWork
from core.scheduler.plan import COPY, CopyDirection

VERSION = 2  # of shapes and method; a basis of another one is not used
RUNS = 3
COPY_BYTES = 2**22
KEPT_ERROR_MAX = 0.1
TIME_LIMIT_NS = 1500 * NS_PER_MS  # then each shape that is left runs once

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step of `num_sequences`, each with so many new tokens behind `context` tokens."""

    num_sequences: int
    num_tokens: int
    context: int

    @property
    def work(self) -> StepWork:
        """Its sums."""
        count = self.num_sequences
        if self.num_tokens == 1:
            return StepWork(
                num_decodes=count, decode_context=count * self.context, num_outputs=count
            )
        work = StepWork()
        for _ in range(count):
            work = work.with_prefill(self.num_tokens, self.context, ends=True)
        return work


SHAPES = (
    StepShape(1, 1, 32),
    StepShape(8, 1, 32),
    StepShape(32, 1, 32),
    StepShape(8, 1, 1024),
    StepShape(1, 32, 0),
    StepShape(1, 128, 0),
    StepShape(1, 64, 1024),
)

CHECKED = (StepShape(8, 1, 32), StepShape(1, 128, 0))  # at every start
FASTER = 0.7  # of what the basis says; its own fit is not that far off


class StepTimer:
    """Runs steps on `backend`, on blocks that nobody holds."""

    def __init__(self, backend: Backend, num_rows: int, clock: Clock, ranks: Ranks = ALONE) -> None:
        """Steps of more sequences than `num_rows` are left out."""
        self._backend = backend
        self._num_rows = num_rows
        self._clock = clock
        self._ranks = ranks
        self._random = np.random.default_rng(0)

    def measure(self, shapes: Sequence[StepShape] = SHAPES) -> list[MeasuredStep]:
        """Run those of `shapes` that rows and context allow; return the shortest time of each."""
        begin_ns = self._clock.now_ns()
        num_positions = self._backend.model.num_positions
        measured = []
        for shape in shapes:
            if shape.context + shape.num_tokens > num_positions:
                continue
            if shape.num_sequences > self._num_rows:
                continue
            times = []
            for _ in range(RUNS):
                times.append(self._run(shape))
                if agree(self._clock.now_ns() - begin_ns > TIME_LIMIT_NS, self._ranks):
                    break
            measured.append(MeasuredStep(shape.work, min(times)))
        return measured

    def _run(self, shape: StepShape) -> int:
        size = self._backend.model.config.vocab_size
        ids = self._random.integers(0, size, shape.num_sequences * shape.num_tokens, np.int32)
        began_ns = self._clock.now_ns()
        run_step(self._backend, shape, ids)
        return self._clock.now_ns() - began_ns


def run_step(backend: Backend, shape: StepShape, token_ids: Int32Array) -> None:
    """Run a step to its end: int32 `token_ids` of all sequences, the best token after each.

    Its sequences have rows and blocks from the first ones on, which they share if there are too
    few.
    """
    count, block_size = shape.num_sequences, backend.model.attention_shape.block_size
    per_sequence = -(-(shape.context + shape.num_tokens) // block_size)
    tables = np.arange(count * per_sequence, dtype=np.int32) % backend.num_blocks
    index = np.arange(count, dtype=np.int32)
    batch = InputBatch(
        row=index,
        generation=np.zeros(count, np.uint32),
        flags=np.zeros(count, np.int32),
        first_position=np.full(count, shape.context, np.int32),
        num_tokens=np.full(count, shape.num_tokens, np.int32),
        first_token=index * np.int32(shape.num_tokens),
        prompt_len=np.full(count, shape.context + shape.num_tokens, np.int32),
        token_ids=token_ids,
        block_tables=tables.reshape(count, per_sequence),
    )
    last_token = index.astype(np.intp) * shape.num_tokens + (shape.num_tokens - 1)
    states = backend.take(backend.forward(batch), last_token)
    backend.sample(states, greedy(count), batch.row).get()


def copy_speed(space: SwapCopies, num_blocks: int, block_bytes: int, clock: Clock) -> float:
    """Return how fast blocks are copied out and in again, one way, GB/s; 0.0 if none can be.

    The first `num_blocks` of pool and host memory are nobody's yet. The first run finds the pages.
    """
    count = min(num_blocks, max(1, COPY_BYTES // block_bytes))
    times = []
    for _ in range(1 + RUNS if count > 0 else 0):
        began_ns = clock.now_ns()
        for direction in (CopyDirection.OUT, CopyDirection.IN):
            space.copy(np.array([(direction, block, block) for block in range(count)], COPY))
        space.wait()
        times.append(clock.now_ns() - began_ns)
    shortest_ns = min(times[1:], default=0)
    return 2 * count * block_bytes / shortest_ns if shortest_ns > 0 else 0.0


def known_or_measured(
    directory: Path,
    facts: Sequence[object],
    measure: Callable[[Sequence[StepShape]], Sequence[MeasuredStep]],
    ranks: Ranks = ALONE,
) -> CostBasis | None:
    """Return the basis kept in `directory` for a machine and model of these `facts`, or measure.

    What rank 0 does all do; the others need no basis, and return the one they have by chance.
    """
    key = hashlib.sha256(repr((VERSION, SHAPES, *facts)).encode()).hexdigest()[:24]
    path = directory / f"step-costs-{key}.json"
    basis = _read(path)
    if agree(basis is not None, ranks):
        steps = measure(CHECKED)
        if not agree(basis is not None and _is_too_slow(basis, steps), ranks):
            return basis
        logger.info("steps are faster than they were when their costs were kept: measured again")
    steps = measure(SHAPES)
    basis = fit_basis(steps)
    if fit_error(basis, steps) <= KEPT_ERROR_MAX:
        _write(path, basis)
    return basis


def _is_too_slow(basis: CostBasis, steps: Sequence[MeasuredStep]) -> bool:
    return any(duration_ns < FASTER * basis.duration_ns(work) for work, duration_ns in steps)


def _read(path: Path) -> CostBasis | None:
    try:
        basis = CostBasis(*(float(price) for price in json.loads(path.read_text())))
    except (OSError, ValueError, TypeError):
        return None
    return basis if basis.is_usable else None


def _write(path: Path, basis: CostBasis) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(basis))
        unfinished.replace(path)
    except OSError as error:
        logger.warning("the costs of steps are not kept: %s", error)
