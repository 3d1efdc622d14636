"""Clients that leave, or take nothing of what they asked for: how that is noticed, and by whom."""

import socket
from collections.abc import Callable

import pytest

from core.messages.tokenizer import Cancel, Generate
from tests.support.http.fake_engine import prompt_text
from tests.support.http.http_rig import HttpRig
from tests.support.http.raw_client import RawReader, completion, request

Start = Callable[..., HttpRig]
SMALL = 40  # ms: a limit that passes at once and still lets a request through


@pytest.mark.parametrize("phase", ["queue", "start", "hold"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_cancelled_in_every_phase(
    rig: HttpRig, phase: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Queued, prefilling or decoding, streamed or not: closing the connection cancels at once, and
    is nothing to log.
    """
    with rig.connect() as raw:
        raw.sendall(completion(phase, stream=stream))
        generate = rig.engine.wait_for(Generate)
        if stream and phase == "hold":
            reader = RawReader(raw)
            reader.head()
            reader.chunk()
    cancel = rig.engine.wait_for(Cancel)
    assert cancel.operation_id == generate.operation_id
    assert cancel.closed_ns >= generate.accepted_ns
    rig.wait_for_page(lambda page: page["disconnects"] == 1 and page["num_streams"] == 0)
    assert not caplog.records


def test_a_client_that_leaves_with_a_large_body_is_noticed(rig: HttpRig) -> None:
    """A body larger than any read buffer does not hide the end of its connection."""
    with rig.connect() as raw:
        raw.sendall(completion("queue", user="u" * 300_000))
        rig.engine.wait_for(Generate)
    rig.engine.wait_for(Cancel)


def test_a_client_that_leaves_with_requests_in_the_pipe_is_noticed(rig: HttpRig) -> None:
    """Requests waiting behind a running one do not hide the end of their connection."""
    with rig.connect() as raw:
        raw.sendall(completion("queue") + completion("say more"))
        rig.engine.wait_for(Generate)
    cancel = rig.engine.wait_for(Cancel)
    assert [cancel.operation_id] == [g.operation_id for g in rig.engine.received(Generate)]


def test_a_client_that_leaves_in_its_body_reaches_nobody(rig: HttpRig) -> None:
    """A request whose body never came whole is no request."""
    with rig.connect() as raw:
        raw.sendall(completion("queue")[:-1])
    with rig.connect() as raw:
        raw.sendall(completion("say next"))
        assert RawReader(raw).answer().status == 200
    assert [prompt_text(g.prompts[0]) for g in rig.engine.received(Generate)] == ["say next"]


def test_a_client_that_ends_its_side_still_gets_cheap_answers(rig: HttpRig) -> None:
    """After the last byte a client will send, everything it has asked for is answered."""
    detokenize = request("POST", "/detokenize", b'{"tokens": [104]}')
    with rig.connect() as raw:
        raw.sendall(detokenize + request("GET", "/version") + detokenize)
        raw.shutdown(socket.SHUT_WR)
        reader = RawReader(raw)
        assert [reader.answer().status for _ in range(3)] == [200, 200, 200]
        assert reader.is_closed()


@pytest.mark.parametrize("prompt", ["queue", "hold"])
def test_a_client_that_ends_its_side_has_left_a_generation(rig: HttpRig, prompt: str) -> None:
    """The end of a connection looks the same from both: nothing is generated for nobody."""
    with rig.connect() as raw:
        raw.sendall(completion(prompt))
        raw.shutdown(socket.SHUT_WR)
        assert RawReader(raw).is_closed()
    cancel = rig.engine.wait_for(Cancel)
    assert [cancel.operation_id] == [g.operation_id for g in rig.engine.received(Generate)]
    rig.wait_for_page(lambda page: page["disconnects"] == 1)


def test_a_finished_request_is_not_cancelled(rig: HttpRig) -> None:
    """Closing a connection after its answer tells the engine nothing."""
    with rig.connect() as raw:
        raw.sendall(completion("say all"))
        assert RawReader(raw).answer().status == 200
    assert rig.get("/version").status_code == 200
    assert rig.engine.received(Cancel) == []


def test_a_reader_that_takes_nothing_is_cut_and_cancelled(start: Start) -> None:
    """A client that stops reading is cut, its request cancelled; others are served meanwhile."""
    rig = start(write_timeout_ms=SMALL, write_buffer_bytes=8192)
    with rig.connect(receive_buffer_bytes=4096) as raw:
        raw.sendall(completion("flood", stream=True))
        generate = rig.engine.wait_for(Generate)
        assert rig.post("/detokenize", {"tokens": [104]}).json() == {"prompt": "h"}
        cancel = rig.engine.wait_for(Cancel)
        assert cancel.operation_id == generate.operation_id
        rig.wait_for_page(lambda page: page["slow_readers_cut"] == 1)


def silent_for(rig: HttpRig) -> None:
    """Return when a connection that sends nothing is closed: after the header timeout."""
    with rig.connect() as raw:
        assert RawReader(raw).is_closed()


@pytest.mark.slow
def test_a_reader_that_has_caught_up_is_not_cut_later(start: Start) -> None:
    """Nor while it has nothing to take: its connection serves its next request."""
    rig = start(write_timeout_ms=1000, header_timeout_ms=2500, write_buffer_bytes=8192)
    with rig.connect(receive_buffer_bytes=4096) as raw:
        raw.sendall(request("GET", "/metrics"))
        rig.wait_for_page(lambda page: page["backlog_bytes"] > 0)
        reader = RawReader(raw)
        assert reader.answer().status == 200
        silent_for(rig)
        raw.sendall(request("GET", "/version"))
        assert reader.answer().status == 200


@pytest.mark.slow
def test_a_reader_that_left_is_not_cut_as_well(start: Start) -> None:
    """It is counted once, as a client that has left."""
    rig = start(write_timeout_ms=1000, header_timeout_ms=1500, write_buffer_bytes=8192)
    with rig.connect(receive_buffer_bytes=4096) as raw:
        raw.sendall(request("GET", "/metrics"))
        rig.wait_for_page(lambda page: page["num_connections"] == 1)
    silent_for(rig)
    page = rig.wait_for_page(lambda page: page["num_connections"] == 0)
    assert page["slow_readers_cut"] == 0


def test_a_reader_that_falls_far_behind_is_cut(start: Start) -> None:
    """A client that reads, but much too slowly, is cut when its bounded queue is full."""
    rig = start(write_timeout_ms=60_000, write_buffer_bytes=8192)
    with rig.connect(receive_buffer_bytes=4096) as raw:
        raw.sendall(completion("flood", stream=True))
        rig.engine.wait_for(Cancel)
        rig.wait_for_page(lambda page: page["slow_readers_cut"] == 1)


def test_what_a_client_has_not_taken_is_on_the_page(start: Start) -> None:
    """Until it reads on, and then no more."""
    rig = start(write_timeout_ms=60_000, write_buffer_bytes=8192)
    with rig.connect(receive_buffer_bytes=4096) as raw:
        raw.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        rig.wait_for_page(lambda page: page["backlog_bytes"] > 0)
        assert RawReader(raw).answer().status == 200
        rig.wait_for_page(lambda page: page["backlog_bytes"] == 0)
