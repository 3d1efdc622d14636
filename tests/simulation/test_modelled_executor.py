"""The virtual clock and the modelled executor: the fakes must be strict, or tests prove nothing."""

import numpy as np
import pytest

from core.sampling_params import SamplingParams
from core.scheduler.plan import PLAN_ROW, PlanFlag, ResultError, StepPlan, StepResult, row_dtype
from core.scheduler.rows import RowWriter
from core.simulation.modelled_executor import ModelledExecutor, StepModel, hashed_token
from core.simulation.virtual_clock import VirtualClock
from tests.support.scheduler.checked_engine import make_request

SAMPLE = int(PlanFlag.SAMPLE)


def make_executor(block_ids: list[int], *, num_logprobs: int = -1) -> tuple[ModelledExecutor, int]:
    """Return an executor with request 1, ids 10 … 17, in row 0 under generation 1, and its seed."""
    rows = np.zeros(2, row_dtype(4))
    request = make_request(
        1, prompt_len=8, max_tokens=4, sampling=SamplingParams(seed=5, num_logprobs=num_logprobs)
    )
    request.block_ids = block_ids
    RowWriter(rows).write(0, request, 1)
    arenas = {0: request.token_ids}
    return ModelledExecutor(rows, arenas, num_blocks=8, block_size=4, model=StepModel(100, 10)), 5


def execute(
    executor: ModelledExecutor, first: int, count: int, flags: int, generation: int = 1
) -> StepResult:
    rows = np.array([(0, generation, count, first, flags)], PLAN_ROW)
    return executor.execute(StepPlan(0, 1, 1, rows), started_ns=50)


def test_a_token_is_a_hash_of_the_whole_sequence() -> None:
    """Chunks or not, the sampled token follows from all ids before it and the seed."""
    whole, seed = make_executor([2, 5])
    chunked, _ = make_executor([7, 1])
    expected = hashed_token(np.arange(10, 18, dtype=np.int32), seed, 50_000)
    assert execute(whole, 0, 8, SAMPLE).rows["token_id"].tolist() == [expected]
    assert len(execute(chunked, 0, 3, 0).rows) == 0
    assert execute(chunked, 3, 5, SAMPLE).rows["token_id"].tolist() == [expected]


def test_positions_that_were_never_computed_change_the_token() -> None:
    """Skipping a position reads poison, so a wrong plan cannot go unnoticed."""
    executor, seed = make_executor([2, 5])
    expected = hashed_token(np.arange(10, 18, dtype=np.int32), seed, 50_000)
    assert execute(executor, 1, 7, SAMPLE).rows["token_id"].tolist() != [expected]


def test_two_sequences_in_one_block_change_the_token() -> None:
    """A block table that names a block twice yields another token."""
    executor, seed = make_executor([2, 2])
    expected = hashed_token(np.arange(10, 18, dtype=np.int32), seed, 50_000)
    assert execute(executor, 0, 8, SAMPLE).rows["token_id"].tolist() != [expected]


def test_feedback_continues_with_the_token_on_the_device() -> None:
    """With FEEDBACK the id comes from the last sample of the row, not from the span."""
    executor, seed = make_executor([2, 5, 3])
    token = int(execute(executor, 0, 8, SAMPLE).rows["token_id"][0])
    following = execute(executor, 8, 1, SAMPLE | PlanFlag.FEEDBACK).rows["token_id"].tolist()
    sequence = np.array([*range(10, 18), token], np.int32)
    assert following == [hashed_token(sequence, seed, 50_000)]


def test_stale_rows_and_bad_ids_are_errors_of_their_row() -> None:
    """Another generation is STALE_ROW; an id that is not there yet is BAD_TOKEN."""
    executor, _ = make_executor([2, 5, 3])
    assert execute(executor, 0, 8, SAMPLE, generation=2).rows["error"] == [ResultError.STALE_ROW]
    assert execute(executor, 8, 1, SAMPLE).rows["error"] == [ResultError.BAD_TOKEN]


def test_a_step_takes_the_modelled_time() -> None:
    """The duration is a fixed part and a part for each token."""
    executor, _ = make_executor([2, 5])
    result = execute(executor, 0, 8, 0)
    assert result.finished_ns - result.started_ns == 180


def test_the_virtual_clock_moves_when_told_and_only_forward() -> None:
    """Time stands still between moves, and a time that has passed is no move."""
    clock = VirtualClock(100)
    assert clock.now_ns() == clock.now_ns() == 100
    assert clock.advance(50) == clock.now_ns() == 150
    assert clock.advance_to(120) == 150
    assert clock.advance_to(200) == 200
    with pytest.raises(AssertionError):
        clock.advance(-1)
