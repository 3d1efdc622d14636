"""Frames carry plans, results and outputs unchanged, and refuse bytes that are something else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.scheduler.frames import (
    Buffer,
    RecordFrameError,
    output_parts,
    plan_parts,
    read_outputs,
    read_plan,
    read_result,
    result_parts,
)
from core.scheduler.plan import (
    COPY,
    LOGPROB,
    OUTPUT,
    PLAN_ROW,
    RESULT_ROW,
    OutputBatch,
    RecordArray,
    StepPlan,
    StepResult,
)


def joined(parts: list[Buffer]) -> bytes:
    """Return a frame as a ring would store it."""
    return b"".join(parts)


def random_records(dtype: np.dtype[np.void], count: int, seed: int) -> RecordArray:
    """Return records of arbitrary bytes."""
    noise = np.random.default_rng(seed).integers(0, 256, dtype.itemsize * count, np.uint8)
    return np.frombuffer(noise.tobytes(), dtype, count)


def same_bytes(left: RecordArray, right: RecordArray) -> bool:
    """Compare as bytes, so that NaN equals itself."""
    return left.tobytes() == right.tobytes()


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 2**31))
def test_plan_survives_its_frame(num_rows: int, num_copies: int, seed: int) -> None:
    """A plan of any number of rows and copies is read back as it was written."""
    rows, copies = random_records(PLAN_ROW, num_rows, seed), random_records(COPY, num_copies, seed)
    plan = StepPlan(3, 7, 2**40, rows, copies=copies)
    read = read_plan(joined(plan_parts(plan)))
    assert same_bytes(read.copies, copies)
    assert (read.replica, read.epoch, read.step) == (3, 7, 2**40)
    assert same_bytes(read.rows, plan.rows)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 2**31))
def test_result_survives_its_frame(num_rows: int, num_logprobs: int, seed: int) -> None:
    """A result with any number of rows and log-probabilities is read back as it was written."""
    result = StepResult(
        1, 2, 3, 4, 5,
        random_records(RESULT_ROW, num_rows, seed),
        random_records(LOGPROB, num_logprobs, seed + 1),
    )  # fmt: skip
    read = read_result(joined(result_parts(result)))
    assert (read.replica, read.epoch, read.step) == (1, 2, 3)
    assert (read.started_ns, read.finished_ns) == (4, 5)
    assert same_bytes(read.rows, result.rows)
    assert same_bytes(read.logprobs, result.logprobs)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 2**31))
def test_outputs_survive_their_frame(num_rows: int, num_logprobs: int, seed: int) -> None:
    """An output batch is read back as it was written."""
    batch = OutputBatch(
        random_records(OUTPUT, num_rows, seed), random_records(LOGPROB, num_logprobs, seed + 1)
    )
    read = read_outputs(joined(output_parts(batch)))
    assert same_bytes(read.records, batch.records)
    assert same_bytes(read.logprobs, batch.logprobs)


def test_reading_copies_nothing() -> None:
    """The rows of a plan that was read are views of the frame itself."""
    frame = bytearray(joined(plan_parts(StepPlan(0, 1, 1, random_records(PLAN_ROW, 2, 0)))))
    read = read_plan(memoryview(frame))
    frame[-PLAN_ROW.itemsize :] = bytes(PLAN_ROW.itemsize)
    assert int(read.rows[1]["row"]) == 0


def test_rows_of_a_slice_are_written_whole() -> None:
    """An array that is not contiguous is written as its elements, not as its memory."""
    rows = random_records(PLAN_ROW, 6, 1)[::2]
    read = read_plan(joined(plan_parts(StepPlan(0, 1, 1, rows))))
    assert same_bytes(read.rows, rows)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(frame: bytes) -> None:
    """Arbitrary bytes are never taken for a frame."""
    for read in (read_plan, read_result, read_outputs):
        with pytest.raises(RecordFrameError):
            read(frame)


def test_truncated_and_extended_frames_are_refused() -> None:
    """A frame that lost or gained a byte is refused."""
    frame = joined(plan_parts(StepPlan(0, 1, 1, random_records(PLAN_ROW, 2, 0))))
    for wrong in (frame[:-1], frame + b"\0", frame[:8]):
        with pytest.raises(RecordFrameError):
            read_plan(wrong)
