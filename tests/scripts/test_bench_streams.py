"""The raw client and the watcher of rings: what the benchmarks of streams and rings count."""

import selectors
import socket
import threading
from pathlib import Path

import numpy as np

from core.scheduler.frames import RESULT_HEADER, result_parts
from core.scheduler.plan import RESULT_ROW, StepResult
from ipc.ring import RingWriter, format_ring, ring_bytes
from ipc.segment import Segment
from scripts.bench.benchmarks.ipc import RingGlance, Watch, round_trips
from scripts.bench.harness.raw_streams import Load, Streams

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
NUM_SLOTS = 2


def chunked(data: bytes) -> bytes:
    """Return one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def serve(listener: socket.socket, answers: list[list[bytes]]) -> None:
    """Answer the requests of one connection, piece by piece, then close it."""
    connection, _ = listener.accept()
    with connection:
        for pieces in answers:
            connection.recv(65536)
            for piece in pieces:
                connection.sendall(piece)


def test_events_and_answers_are_counted_however_they_are_cut() -> None:
    """An event torn by the network counts once, a second request follows the first answer, and a
    connection that the server closes is a failure.
    """
    answer = HEAD + chunked(b"data: 1\n\n") + chunked(b"data: 2\n\n") + b"0\r\n\r\n"
    cut = answer.index(b"ta: 2")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(
            target=serve, args=(listener, [[answer[:cut], answer[cut:]], [answer]])
        )
        server.start()
        streams = Streams(Load(listener.getsockname()[1], "/", 1, ["{}"]))
        while streams.selector.get_map():
            for key, events in streams.selector.select(10):
                assert events == selectors.EVENT_READ
                streams.read(key.data)
        server.join()
    counts = streams.counts
    assert (counts.num_answers, counts.num_events, counts.num_failures) == (2, 4, 1)
    assert counts.num_bytes == 2 * len(answer)


def test_a_glance_sees_the_results_that_are_still_in_their_ring(tmp_path: Path) -> None:
    """Headers are read without acknowledging anything; those overwritten are told from others."""
    path = tmp_path / "results"
    segment = Segment.create(path, ring_bytes(NUM_SLOTS, RESULT_HEADER.itemsize))
    format_ring(segment, NUM_SLOTS, RESULT_HEADER.itemsize)
    writer, glance = RingWriter(segment), RingGlance(path)
    for step in range(NUM_SLOTS):
        result = StepResult(0, 1, 10 + step, 100 * step, 100 * step + 50, np.zeros(0, RESULT_ROW))
        assert writer.send(result_parts(result))
    assert glance.head == 1 + NUM_SLOTS
    header = glance.result_header(2)
    assert header is not None
    assert (int(header["step"]), int(header["started_ns"])) == (11, 100)
    assert glance.result_header(2 - NUM_SLOTS) is None


def test_only_neighbouring_steps_tell_the_time_between_them() -> None:
    """A step that was missed leaves a hole, not a long wait."""
    watch = Watch({1: (0, 1000), 2: (3000, 4000), 4: (9000, 9500)})
    assert watch.idle_us() == [2.0]


def test_round_trips_come_back_whole() -> None:
    """Every plan is answered by the other process with as many rows, and all ends are let go."""
    figures = round_trips(num_rows=8, count=50)
    assert 0 < figures["p10_us"] <= figures["p50_us"] <= figures["p99_us"]
