"""The costs of steps are measured once on a machine and found again."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from core.executor.backend import CpuBackend
from core.executor.kv_pool import SwapSpace
from core.executor.step_timing import (
    CHECKED,
    SHAPES,
    StepShape,
    StepTimer,
    copy_speed,
    known_or_measured,
)
from core.kernels.selection import Kernels
from core.models.decoder import Decoder
from core.models.decoder_weights import load_weights
from core.models.model_config import read_model_config
from core.policy.calibration import MeasuredStep, fit_basis
from core.policy.cost_model import CostBasis, StepWork
from tests.support.executor.plan_driver import ManualClock
from tests.support.models.tiny_model import write_tiny_model

MEASURED = [
    MeasuredStep(StepWork(num_decodes=n, decode_context=n), 1000 + 10 * n) for n in range(1, 5)
]


class TickingClock(ManualClock):
    """A clock on which a microsecond passes whenever it is read."""

    def now_ns(self) -> int:
        """Return a later time than before."""
        self.ns += 1000
        return self.ns


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> CpuBackend:
    """A tiny model with plain kernels."""
    directory = write_tiny_model(tmp_path_factory.mktemp("model"))
    config, kernels = read_model_config(directory), Kernels(None, torch.float32)
    weights = load_weights(directory, config, kernels)
    model = Decoder(config, weights, kernels, block_size=16, num_positions=256)
    shape = model.attention_shape.cache_shape(8)
    caches = [torch.zeros(shape) for _ in range(config.num_layers)]
    return CpuBackend(model, caches, kernels.choice())


@pytest.mark.parametrize("num_rows", [64, 8])
def test_every_shape_that_fits_is_run(backend: CpuBackend, num_rows: int) -> None:
    """Longer contexts and more sequences than there are are left out; the shortest run counts."""
    with torch.inference_mode():
        steps = StepTimer(backend, num_rows, TickingClock()).measure()
    fitting = [
        shape
        for shape in SHAPES
        if shape.context + shape.num_tokens <= 256 and shape.num_sequences <= num_rows
    ]
    assert 0 < len(fitting) < len(SHAPES)
    assert [step.work for step in steps] == [shape.work for shape in fitting]
    assert {step.duration_ns for step in steps} == {1000}


def test_shapes_count_as_a_policy_counts_them() -> None:
    """Decodes by number and context, chunks by tokens and pairs."""
    by_tokens = {(s.num_sequences, s.num_tokens, s.context): s.work for s in SHAPES}
    assert by_tokens[8, 1, 1024] == StepWork(num_decodes=8, decode_context=8 * 1024, num_outputs=8)
    assert by_tokens[1, 64, 1024] == StepWork().with_prefill(64, 1024, ends=True)


def test_the_speed_of_copies_is_measured_both_ways() -> None:
    """Four blocks of 1,000 bytes out and in, in a microsecond between two looks at the clock."""
    pool = [torch.zeros(4, 250)]
    space = SwapSpace(pool, 4)
    assert copy_speed(space, 4, 1000, TickingClock()) == 2 * 4 * 1000 / 1000


def test_without_host_memory_no_speed_is_known() -> None:
    """Where nothing can be copied, nothing is measured."""
    assert copy_speed(SwapSpace([torch.zeros(4, 250)], 0), 0, 1000, TickingClock()) == 0


def test_copies_whose_time_cannot_be_told_have_no_speed() -> None:
    """A clock that stands still divides by nothing."""
    assert copy_speed(SwapSpace([torch.zeros(4, 250)], 4), 4, 1000, ManualClock()) == 0


def measured(shapes: Sequence[StepShape]) -> list[MeasuredStep]:
    """Answer as a machine that is always the same."""
    assert shapes in (SHAPES, CHECKED)
    return MEASURED


def times_as_long(factor: float) -> Callable[[Sequence[StepShape]], list[MeasuredStep]]:
    """Return the measurement of a machine whose steps last `factor` times as long."""
    steps = [MeasuredStep(work, int(factor * duration_ns)) for work, duration_ns in MEASURED]
    return lambda _: steps


def test_a_second_start_only_checks_what_was_kept(tmp_path: Path) -> None:
    """The same machine and model find it, by a few steps."""
    asked: list[Sequence[StepShape]] = []

    def measure(shapes: Sequence[StepShape]) -> list[MeasuredStep]:
        asked.append(shapes)
        return MEASURED

    first = known_or_measured(tmp_path / "new", ["cpu", 2], measure)
    assert first == fit_basis(MEASURED)
    assert known_or_measured(tmp_path / "new", ["cpu", 2], measure) == first
    assert asked == [SHAPES, CHECKED]


def test_what_was_measured_on_a_busy_machine_does_not_stay(tmp_path: Path) -> None:
    """Steps that are faster than the basis says prove it wrong; it is measured again and kept."""
    assert known_or_measured(tmp_path, [], times_as_long(2)) != fit_basis(MEASURED)
    assert known_or_measured(tmp_path, [], measured) == fit_basis(MEASURED)
    assert known_or_measured(tmp_path, [], times_as_long(2)) == fit_basis(MEASURED)


def test_a_start_on_a_busy_machine_keeps_what_is_known(tmp_path: Path) -> None:
    """Steps that last longer, or are not much faster, prove nothing."""
    known_or_measured(tmp_path, [], measured)
    for factor in (3, 0.9):
        assert known_or_measured(tmp_path, [], times_as_long(factor)) == fit_basis(MEASURED)


def test_another_machine_or_model_measures_anew(tmp_path: Path) -> None:
    """Each has a file of its own."""
    known_or_measured(tmp_path, ["cpu", 2], measured)
    twice = [MeasuredStep(work, 2 * duration_ns) for work, duration_ns in MEASURED]
    other = known_or_measured(tmp_path, ["cpu", 4], lambda _: twice)
    assert other == fit_basis(twice)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("text", ["", "[1, 2", "{}", "[1, 2, 3, 4, 5, 6]", "[0, 0, 0, 0, 0]"])
def test_a_damaged_file_is_measured_again(tmp_path: Path, text: str) -> None:
    """And replaced."""
    known_or_measured(tmp_path, [], measured)
    (kept,) = tmp_path.iterdir()
    kept.write_text(text)
    assert known_or_measured(tmp_path, [], measured) == fit_basis(MEASURED)
    assert kept.read_text() != text


def test_a_basis_that_fits_badly_is_not_kept(tmp_path: Path) -> None:
    """It is used, and the next start measures again."""
    disturbed = [*MEASURED, MeasuredStep(MEASURED[0].work, 5 * MEASURED[0].duration_ns)]
    assert known_or_measured(tmp_path, [], lambda _: disturbed) == fit_basis(disturbed)
    assert known_or_measured(tmp_path, [], measured) == fit_basis(MEASURED)


def test_a_place_that_cannot_be_written_costs_only_the_next_start(tmp_path: Path) -> None:
    """The basis is used all the same."""
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    basis = known_or_measured(blocked, [], measured)
    assert isinstance(basis, CostBasis)
