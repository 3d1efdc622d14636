"""Plans, results and outputs as frames of bytes: a fixed header, then the record arrays.

Owns: the header layouts and their checks. Never knows: rings, slots or processes. Reading copies
nothing: the arrays of a plan, result or batch that was read are views of the frame and live as long
as its slot. Writing copies the arrays, a few kilobytes, which costs less than making views of them.

    plan     PLAN_HEADER   | PLAN_ROW[num_rows]   | COPY[num_copies]
    result   RESULT_HEADER | RESULT_ROW[num_rows] | LOGPROB[num_logprobs]
    outputs  OUTPUT_HEADER | OUTPUT[num_rows]     | LOGPROB[num_logprobs]
"""

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np

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


class _Header:
    """A header as plain numbers: numpy takes ten times as long to fill or read a single record."""

    _CODES: Final = {np.uint32: "I", np.int64: "q", np.uint64: "Q"}

    def __init__(self, dtype: np.dtype[np.void], magic: int) -> None:
        """Take the fields of `dtype`, whose first one holds `magic`."""
        codes = [self._CODES[dtype[name].type] for name in dtype.names or ()]
        self._struct = struct.Struct("<" + "".join(codes))
        assert self._struct.size == dtype.itemsize, dtype
        self._magic = magic
        self.num_bytes = dtype.itemsize

    def pack(self, *fields: int) -> bytes:
        """Return the header with `fields` behind the magic number."""
        return self._struct.pack(self._magic, *fields)

    def unpack(self, frame: Buffer) -> Sequence[int]:
        """Return the fields behind the magic number; raises RecordFrameError."""
        if len(frame) < self.num_bytes:
            raise RecordFrameError(f"a frame of {len(frame)} bytes is shorter than its header")
        magic, *fields = self._struct.unpack_from(frame)
        if magic != self._magic:
            raise RecordFrameError(f"frame magic {magic:#x}, expected {self._magic:#x}")
        return fields


_PLAN = _Header(PLAN_HEADER, PLAN_MAGIC)
_RESULT = _Header(RESULT_HEADER, RESULT_MAGIC)
_OUTPUTS = _Header(OUTPUT_HEADER, OUTPUT_MAGIC)


def plan_parts(plan: StepPlan) -> list[Buffer]:
    """Return the frame of a plan in parts, ready for `FrameSender.send`."""
    header = _PLAN.pack(
        len(plan.rows), plan.replica, plan.epoch, plan.step, plan.scheduler_epoch, len(plan.copies)
    )
    return [header, plan.rows.tobytes(), plan.copies.tobytes()]


def result_parts(result: StepResult) -> list[Buffer]:
    """Return the frame of a result in parts."""
    header = _RESULT.pack(
        len(result.rows), len(result.logprobs),
        result.replica, result.epoch, result.step, result.started_ns, result.finished_ns,
        result.scheduler_epoch,
    )  # fmt: skip
    return [header, result.rows.tobytes(), result.logprobs.tobytes()]


def output_parts(batch: OutputBatch) -> list[Buffer]:
    """Return the frame of an output batch in parts."""
    header = _OUTPUTS.pack(len(batch.records), len(batch.logprobs))
    return [header, batch.records.tobytes(), batch.logprobs.tobytes()]


def read_plan(frame: Buffer) -> StepPlan:
    """Return the plan in `frame`, its arrays as views; raises RecordFrameError."""
    num_rows, replica, epoch, step, scheduler_epoch, num_copies = _PLAN.unpack(frame)
    rows, copies = _arrays(frame, _PLAN.num_bytes, (PLAN_ROW, num_rows), (COPY, num_copies))
    return StepPlan(replica, epoch, step, rows, scheduler_epoch, copies)


def read_result(frame: Buffer) -> StepResult:
    """Return the result in `frame`, its arrays as views; raises RecordFrameError."""
    num_rows, num_logprobs, replica, epoch, step, started_ns, finished_ns, scheduler_epoch = (
        _RESULT.unpack(frame)
    )
    rows, logprobs = _arrays(
        frame, _RESULT.num_bytes, (RESULT_ROW, num_rows), (LOGPROB, num_logprobs)
    )
    return StepResult(
        replica, epoch, step, started_ns, finished_ns, rows, logprobs, scheduler_epoch
    )


def read_outputs(frame: Buffer) -> OutputBatch:
    """Return the output batch in `frame`, its arrays as views; raises RecordFrameError."""
    num_rows, num_logprobs = _OUTPUTS.unpack(frame)
    return OutputBatch(
        *_arrays(frame, _OUTPUTS.num_bytes, (OUTPUT, num_rows), (LOGPROB, num_logprobs))
    )


def _arrays(
    frame: Buffer,
    offset: int,
    first: tuple[np.dtype[np.void], int],
    second: tuple[np.dtype[np.void], int],
) -> tuple[RecordArray, RecordArray]:
    """Return views of the two arrays behind the header: (dtype, count) each."""
    middle = offset + first[0].itemsize * first[1]
    end = middle + second[0].itemsize * second[1]
    if end != len(frame):
        raise RecordFrameError(f"a frame of {len(frame)} bytes, its header says {end}")
    return np.frombuffer(frame, *first, offset), np.frombuffer(frame, *second, middle)
