"""What steps of this model cost on this machine: a few short ones are timed once and remembered.

Owns: the shapes that are run, the memory they run in, the fingerprint under which the answer is
kept. Never knows: the executor's own KV pool, rows or plans; the model's forward pass is called as
in a step, on scratch blocks that are given back. Ranks of a replica run the same steps: rank 0 says
whether any are needed, and when it is enough.

The shapes tell the five prices of a `CostBasis` apart: few and many decodes, short and long
contexts, prompt chunks with and without tokens before them. The shortest of a few runs counts,
because whatever disturbs a run makes it longer; what disturbs all runs is for the moving factors of
`core.policy.calibration`. A basis that cannot be kept is measured again at the next start, and so
is one that fits its own steps badly: other work came and went while they ran. The speed of copies
to host memory takes a few milliseconds, and is measured at every start.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from core.clock import NS_PER_MS, Clock
from core.executor.kv_pool import SwapSpace, allocate_kv_pool
from core.kernels.choice import Choice
from core.kernels.paged_attention import AttentionBatch
from core.models.decoder import Decoder
from core.parallel.ranks import ALONE, Ranks, agree
from core.policy.calibration import MeasuredStep, fit_basis, fit_error
from core.policy.cost_model import CostBasis, StepWork
from core.scheduler.plan import COPY, CopyDirection

VERSION = 1  # of shapes and method; a basis of another one is not used
SCRATCH_TOKENS = 2048
SCRATCH_BYTES_MAX = 2**27
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


class StepTimer:
    """Runs steps of `model` on blocks of its own."""

    def __init__(
        self,
        model: Decoder,
        choice: Choice,
        dtype: torch.dtype,
        clock: Clock,
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        self._model = model
        self._choice = choice
        self._clock = clock
        shape = model.attention_shape
        token_bytes = prod(shape.cache_shape(1)) * dtype.itemsize * model.config.num_layers
        most = max(1, SCRATCH_BYTES_MAX // token_bytes)
        self._num_blocks = min(most, -(-SCRATCH_TOKENS // shape.block_size))
        self._caches: Sequence[Tensor] = allocate_kv_pool(
            model.config.num_layers, shape.cache_shape(self._num_blocks), dtype
        )
        for cache in self._caches:
            cache.zero_()
        self._random = np.random.default_rng(0)

    def measure(self) -> list[MeasuredStep]:
        """Run every shape that the model's context allows; return the shortest time of each."""
        begin_ns = self._clock.now_ns()
        measured = []
        for shape in SHAPES:
            if shape.context + shape.num_tokens > self._model.num_positions:
                continue
            times = []
            for _ in range(RUNS):
                times.append(self._run(shape))
                if agree(self._clock.now_ns() - begin_ns > TIME_LIMIT_NS, self._ranks):
                    break
            measured.append(MeasuredStep(shape.work, min(times)))
        return measured

    def _run(self, shape: StepShape) -> int:
        count, num_tokens = shape.num_sequences, shape.num_tokens
        size = self._model.config.vocab_size
        ids = self._random.integers(0, size, count * num_tokens, dtype=np.int32)
        batch = self._batch(shape)
        last = torch.arange(1, count + 1) * num_tokens - 1
        began_ns = self._clock.now_ns()
        hidden = self._model.forward(torch.from_numpy(ids), batch, self._caches)
        self._choice.argmax(self._model.logits(hidden[last]))
        return self._clock.now_ns() - began_ns

    def _batch(self, shape: StepShape) -> AttentionBatch:
        """Return sequences whose blocks lie all over the scratch, shared if it is too small."""
        count = shape.num_sequences
        per_sequence = -(-(shape.context + shape.num_tokens) // self._block_size)
        tables = np.arange(count * per_sequence, dtype=np.int32) % self._num_blocks
        return AttentionBatch(
            first_token=np.arange(count, dtype=np.int32) * np.int32(shape.num_tokens),
            num_tokens=np.full(count, shape.num_tokens, np.int32),
            first_position=np.full(count, shape.context, np.int32),
            block_tables=tables.reshape(count, per_sequence),
        )

    @property
    def _block_size(self) -> int:
        return self._model.attention_shape.block_size


def copy_speed(space: SwapSpace, num_blocks: int, block_bytes: int, clock: Clock) -> float:
    """Return how fast blocks are copied out and in again, one way, GB/s; 0.0 if none can be.

    The first `num_blocks` of pool and host memory are nobody's yet. The first run finds the pages.
    """
    count = min(num_blocks, max(1, COPY_BYTES // block_bytes))
    times = []
    for _ in range(1 + RUNS if count > 0 else 0):
        began_ns = clock.now_ns()
        for direction in (CopyDirection.OUT, CopyDirection.IN):
            space.copy(np.array([(direction, block, block) for block in range(count)], COPY))
        times.append(clock.now_ns() - began_ns)
    shortest_ns = min(times[1:], default=0)
    return 2 * count * block_bytes / shortest_ns if shortest_ns > 0 else 0.0


def known_or_measured(
    directory: Path,
    facts: Sequence[object],
    measure: Callable[[], Sequence[MeasuredStep]],
    ranks: Ranks = ALONE,
) -> CostBasis | None:
    """Return the basis kept in `directory` for a machine and model of these `facts`, or measure.

    What rank 0 does all do; the others need no basis, and return the one they have by chance.
    """
    key = hashlib.sha256(repr((VERSION, SHAPES, *facts)).encode()).hexdigest()[:24]
    path = directory / f"step-costs-{key}.json"
    basis = _read(path)
    if agree(basis is None, ranks):
        steps = measure()
        basis = fit_basis(steps)
        if fit_error(basis, steps) <= KEPT_ERROR_MAX:
            _write(path, basis)
    return basis


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
