"""Outputs on their way to the tokenizers: cutting into frames, and waiting for room."""

import numpy as np
import pytest

from core.runtime.scheduler.outbox import MAX_HELD_BYTES, STALL_NS, Outbox, refusal, split
from core.scheduler.frames import OUTPUT_HEADER, read_outputs
from core.scheduler.plan import LOGPROB, OUTPUT, OutputBatch, OutputKind
from ipc.loopback import LoopbackRing


def batch_of(num_logprobs: list[int]) -> OutputBatch:
    """Return a record for each number, with so many log-probabilities of its own."""
    counts = np.array(num_logprobs, np.int64)
    records = np.zeros(len(counts), OUTPUT)
    records["request_id"] = np.arange(len(counts))
    records["num_logprobs"] = counts
    records["logprobs_start"] = np.cumsum(counts) - counts
    logprobs = np.zeros(int(counts.sum()), LOGPROB)
    logprobs["token_id"] = np.arange(len(logprobs))
    return OutputBatch(records, logprobs)


def flattened(pieces: list[OutputBatch]) -> list[tuple[int, list[int]]]:
    """Return (request id, token ids of its log-probabilities) of every record, in order."""
    return [
        (
            int(record["request_id"]),
            piece.logprobs["token_id"][
                record["logprobs_start"] : record["logprobs_start"] + record["num_logprobs"]
            ].tolist(),
        )
        for piece in pieces
        for record in piece.records
    ]


@pytest.mark.parametrize(
    ("num_logprobs", "max_records", "max_logprobs", "sizes"),
    [
        ([1, 2, 3], 10, 10, [3]),
        ([0] * 7, 3, 10, [3, 3, 1]),
        ([4, 4, 4, 4], 10, 8, [2, 2]),
        ([8, 1, 7, 0, 1], 10, 8, [1, 3, 1]),
        ([0, 8, 0], 10, 8, [3]),
    ],
)
def test_a_batch_is_cut_into_frames_that_fit(
    num_logprobs: list[int], max_records: int, max_logprobs: int, sizes: list[int]
) -> None:
    """Neither bound is passed, and every record keeps its place and its log-probabilities."""
    batch = batch_of(num_logprobs)
    pieces = list(split(batch, max_records, max_logprobs))
    assert [len(piece.records) for piece in pieces] == sizes
    assert all(len(piece.logprobs) <= max_logprobs for piece in pieces)
    assert flattened(pieces) == flattened([batch])


def test_windows_may_lie_in_any_order() -> None:
    """Records whose log-probabilities are not in their own order keep them all the same."""
    batch = batch_of([2, 3, 1])
    batch.records["logprobs_start"] = [4, 1, 0]
    assert flattened(list(split(batch, 2, 5))) == [(0, [4, 5]), (1, [1, 2, 3]), (2, [0])]


def test_frames_wait_while_the_ring_is_full_and_keep_their_order() -> None:
    """What finds no room is held back, and comes out first."""
    ring = LoopbackRing(num_slots=1, slot_bytes=4096)
    outbox = Outbox(1, max_records=1, max_logprobs=8)
    outbox.put({0: batch_of([0, 0, 0])})
    received = []
    for left in (True, True, False):
        outbox.flush([ring.writer], 0)
        assert outbox.is_blocked(0) is left
        assert outbox.is_empty is not left
        frame = ring.readers[0].receive()
        assert frame is not None
        received.append(int(read_outputs(frame).records["request_id"][0]))
        ring.readers[0].acknowledge()
    assert received == [0, 1, 2]


def test_a_full_ring_does_not_hold_back_another_tokenizer() -> None:
    """Each tokenizer has its own line."""
    full, free = LoopbackRing(1, 4096), LoopbackRing(1, 4096)
    full.writer.send([b"x"])
    outbox = Outbox(2, max_records=8, max_logprobs=8)
    outbox.put({0: batch_of([0]), 1: batch_of([0])})
    outbox.flush([full.writer, free.writer], 0)
    assert free.readers[0].receive() is not None
    assert outbox.is_blocked(0)


def test_one_of_several_tokenizers_that_stalls_does_not_stop_the_others() -> None:
    """Its outputs are kept up to a bound, and come out in order when it reads again."""
    stalled, free = LoopbackRing(1, 4096), LoopbackRing(1, 4096)
    writers = [stalled.writer, free.writer]
    outbox = Outbox(2, max_records=1, max_logprobs=8)
    outbox.put({0: batch_of([0, 0])})
    outbox.flush(writers, 0)
    assert outbox.is_blocked(STALL_NS - 1)
    assert not outbox.is_blocked(STALL_NS)
    num_held = 1
    while not outbox.is_blocked(STALL_NS):
        outbox.put({0: batch_of([0] * 1000)})
        num_held += 1000
    num_bytes = num_held * (OUTPUT_HEADER.itemsize + OUTPUT.itemsize)
    assert MAX_HELD_BYTES <= num_bytes < MAX_HELD_BYTES + 2**18
    stalled.readers[0].receive()
    stalled.readers[0].acknowledge()
    outbox.flush(writers, STALL_NS)
    assert outbox.is_blocked(STALL_NS)  # it reads: it is only slow


def test_tokenizers_that_all_stall_stop_planning() -> None:
    """Nobody would read what is computed."""
    full = LoopbackRing(1, 4096)
    outbox = Outbox(1, max_records=1, max_logprobs=8)
    outbox.put({0: batch_of([0, 0])})
    outbox.flush([full.writer], 0)
    assert outbox.is_blocked(100 * STALL_NS)


def test_what_a_dead_tokenizer_would_have_read_is_dropped() -> None:
    """Its full ring blocks nobody any more."""
    ring = LoopbackRing(1, 4096)
    ring.writer.send([b"x"])
    outbox = Outbox(1, max_records=8, max_logprobs=8)
    outbox.put({0: batch_of([0])})
    outbox.flush([ring.writer], 0)
    outbox.forget(0)
    assert outbox.is_empty
    assert not outbox.is_blocked(0)


def test_a_refusal_is_one_terminal_record_and_one_release() -> None:
    """The tokenizer can end the stream and reuse the span."""
    records = refusal(7).records
    assert records["kind"].tolist() == [OutputKind.FINISHED, OutputKind.RELEASED]
    assert set(records["request_id"].tolist()) == {7}
