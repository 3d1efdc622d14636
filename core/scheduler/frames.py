"""Plans, results and outputs as frames of bytes: a fixed header, then the record arrays.

Owns: the header layouts and their checks. Never knows: rings, slots or processes. Writing copies
nothing (the parts are views of the arrays), reading copies nothing either: the arrays of a plan,
result or batch that was read are views of the frame and live as long as its slot.

    plan     PLAN_HEADER   | PLAN_ROW[num_rows]   | COPY[num_copies]
    result   RESULT_HEADER | RESULT_ROW[num_rows] | LOGPROB[num_logprobs]
    outputs  OUTPUT_HEADER | OUTPUT[num_rows]     | LOGPROB[num_logprobs]
"""

from typing import Final

import numpy as np
import numpy.typing as npt

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

Buffer = bytes | bytearray | memoryview

PLAN_MAGIC: Final = 0x48525032  # "HRP2"
RESULT_MAGIC: Final = 0x48525231  # "HRR1"
OUTPUT_MAGIC: Final = 0x48524F31  # "HRO1"

PLAN_HEADER = np.dtype(
    [
        ("magic", np.uint32),
        ("num_rows", np.uint32),
        ("replica", np.int64),
        ("epoch", np.int64),
        ("step", np.int64),
        ("scheduler_epoch", np.int64),
        ("num_copies", np.uint64),
    ]
)

RESULT_HEADER = np.dtype(
    [
        ("magic", np.uint32),
        ("num_rows", np.uint32),
        ("num_logprobs", np.uint64),
        ("replica", np.int64),
        ("epoch", np.int64),
        ("step", np.int64),
        ("started_ns", np.int64),
        ("finished_ns", np.int64),
        ("scheduler_epoch", np.int64),
    ]
)

OUTPUT_HEADER = np.dtype(
    [("magic", np.uint32), ("num_rows", np.uint32), ("num_logprobs", np.uint64)]
)


class RecordFrameError(ValueError):
    """A frame whose header or length is not what its reader expects: another version, or broken.

    Not `ipc.errors.FrameError`, which this pure room may not know.
    """


def plan_parts(plan: StepPlan) -> list[Buffer]:
    """Return the frame of a plan in parts, ready for `FrameSender.send`."""
    header = np.zeros(1, PLAN_HEADER)
    header[0] = (
        PLAN_MAGIC, len(plan.rows), plan.replica, plan.epoch, plan.step, plan.scheduler_epoch,
        len(plan.copies),
    )  # fmt: skip
    return [_bytes_of(header), _bytes_of(plan.rows), _bytes_of(plan.copies)]


def result_parts(result: StepResult) -> list[Buffer]:
    """Return the frame of a result in parts."""
    header = np.zeros(1, RESULT_HEADER)
    header[0] = (
        RESULT_MAGIC, len(result.rows), len(result.logprobs),
        result.replica, result.epoch, result.step, result.started_ns, result.finished_ns,
        result.scheduler_epoch,
    )  # fmt: skip
    return [_bytes_of(header), _bytes_of(result.rows), _bytes_of(result.logprobs)]


def output_parts(batch: OutputBatch) -> list[Buffer]:
    """Return the frame of an output batch in parts."""
    header = np.zeros(1, OUTPUT_HEADER)
    header[0] = (OUTPUT_MAGIC, len(batch.records), len(batch.logprobs))
    return [_bytes_of(header), _bytes_of(batch.records), _bytes_of(batch.logprobs)]


def read_plan(frame: Buffer) -> StepPlan:
    """Return the plan in `frame`, its arrays as views; raises RecordFrameError."""
    header = _header(frame, PLAN_HEADER, PLAN_MAGIC)
    rows, copies = _arrays(
        frame,
        PLAN_HEADER.itemsize,
        ((PLAN_ROW, int(header["num_rows"])), (COPY, int(header["num_copies"]))),
    )
    return StepPlan(
        int(header["replica"]), int(header["epoch"]), int(header["step"]), rows,
        int(header["scheduler_epoch"]), copies,
    )  # fmt: skip


def read_result(frame: Buffer) -> StepResult:
    """Return the result in `frame`, its arrays as views; raises RecordFrameError."""
    header = _header(frame, RESULT_HEADER, RESULT_MAGIC)
    rows, logprobs = _arrays(
        frame,
        RESULT_HEADER.itemsize,
        ((RESULT_ROW, int(header["num_rows"])), (LOGPROB, int(header["num_logprobs"]))),
    )
    return StepResult(
        int(header["replica"]), int(header["epoch"]), int(header["step"]),
        int(header["started_ns"]), int(header["finished_ns"]), rows, logprobs,
        int(header["scheduler_epoch"]),
    )  # fmt: skip


def read_outputs(frame: Buffer) -> OutputBatch:
    """Return the output batch in `frame`, its arrays as views; raises RecordFrameError."""
    header = _header(frame, OUTPUT_HEADER, OUTPUT_MAGIC)
    records, logprobs = _arrays(
        frame,
        OUTPUT_HEADER.itemsize,
        ((OUTPUT, int(header["num_rows"])), (LOGPROB, int(header["num_logprobs"]))),
    )
    return OutputBatch(records, logprobs)


def _bytes_of(array: RecordArray) -> memoryview:
    flat: npt.NDArray[np.uint8] = np.ascontiguousarray(array).view(np.uint8)
    return flat.data


def _header(frame: Buffer, dtype: np.dtype[np.void], magic: int) -> np.void:
    if len(frame) < dtype.itemsize:
        raise RecordFrameError(f"a frame of {len(frame)} bytes is shorter than its header")
    header: np.void = np.frombuffer(frame, dtype, 1)[0]
    if int(header["magic"]) != magic:
        raise RecordFrameError(f"frame magic {int(header['magic']):#x}, expected {magic:#x}")
    return header


def _arrays(
    frame: Buffer, offset: int, shapes: tuple[tuple[np.dtype[np.void], int], ...]
) -> list[RecordArray]:
    wanted = offset + sum(dtype.itemsize * count for dtype, count in shapes)
    if wanted != len(frame):
        raise RecordFrameError(f"a frame of {len(frame)} bytes, its header says {wanted}")
    arrays = []
    for dtype, count in shapes:
        arrays.append(np.frombuffer(frame, dtype, count, offset))
        offset += dtype.itemsize * count
    return arrays
