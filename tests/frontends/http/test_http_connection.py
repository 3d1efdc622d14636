"""What one connection may cost, in bytes and time, and the order of its requests."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest

from core.messages.tokenizer import Cancel, Generate
from frontends.http.connection.limits import MAX_PIPELINED_REQUESTS
from tests.support.http.fake_engine import WAIT_S
from tests.support.http.http_rig import HttpRig
from tests.support.http.raw_client import RawReader, completion, request

Start = Callable[..., HttpRig]
SMALL = 40  # ms: a limit that passes at once and still lets a request through
ATTEMPTS = 100  # of a test that is in time only as a rule


def test_a_head_beyond_the_limit_gets_431(start: Start) -> None:
    """A head with too many bytes of headers is answered with 431, and the connection ends."""
    rig = start(max_header_bytes=1024)
    with rig.connect() as raw:
        raw.sendall(request("GET", "/health", x_filler="a" * 2000))
        reader = RawReader(raw)
        answer = reader.answer()
        assert (answer.status, answer.code) == (431, "header_too_large")
        assert answer.headers["x-request-id"]
        assert reader.is_closed()


def test_a_header_that_never_ends_gets_431(start: Start) -> None:
    """A single header that grows in pieces is cut at the limit, though no header is complete."""
    rig = start(max_header_bytes=1024)
    with rig.connect() as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-endless: ")
        for _ in range(12):
            raw.sendall(b"a" * 100)
        assert RawReader(raw).answer().status == 431


def test_an_endless_url_gets_431(start: Start) -> None:
    """The request line counts as part of the head."""
    rig = start(max_header_bytes=1024)
    with rig.connect() as raw:
        raw.sendall(b"GET /" + b"a" * 3000)
        assert RawReader(raw).answer().status == 431


def test_a_dripped_head_gets_408(start: Start) -> None:
    """A head that is not complete in time is answered with 408, however steadily bytes come."""
    rig = start(header_timeout_ms=SMALL)
    with sent(rig, b"GET /health HTTP/1.1\r\nhost: local") as raw:
        answer = RawReader(raw).answer()
        assert (answer.status, answer.code) == (408, "request_timeout")


def test_a_silent_connection_is_closed(start: Start) -> None:
    """A new connection that sends nothing is closed without an answer."""
    rig = start(header_timeout_ms=SMALL)
    with rig.connect() as raw:
        assert RawReader(raw).is_closed()


def test_an_idle_connection_is_closed_after_keep_alive(start: Start) -> None:
    """After an answer the connection stays open for the keep-alive time and no longer."""
    rig = start(keep_alive_ms=SMALL)
    with rig.connect() as raw:
        raw.sendall(request("GET", "/version"))
        reader = RawReader(raw)
        assert reader.answer().status == 200
        assert reader.is_closed()


@contextmanager
def stalled(rig: HttpRig) -> Iterator[None]:
    """Hold the server's loop while the block runs, as it takes in what another socket has."""
    is_held, may_go_on = threading.Event(), threading.Event()
    ours, theirs = socket.socketpair()

    def hold() -> None:
        rig.loop.remove_reader(theirs)
        is_held.set()
        may_go_on.wait(WAIT_S)

    with ours, theirs:
        rig.loop.call_soon_threadsafe(rig.loop.add_reader, theirs, hold)
        ours.send(b"!")
        assert is_held.wait(WAIT_S)
        try:
            yield
        finally:
            may_go_on.set()


def sent(rig: HttpRig, data: bytes) -> socket.socket:
    """Return a connection whose first bytes are there when the server takes it, so that no limit
    passes before we have sent them.
    """
    with stalled(rig):
        raw = rig.connect()
        raw.sendall(data)
    return raw


def is_open(raw: socket.socket) -> bool:
    """Tell whether the server, which sends nothing now, has not closed the connection."""
    raw.setblocking(False)
    try:
        assert raw.recv(1) == b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        raw.settimeout(WAIT_S)
    return False


def expect_silence(raw: socket.socket) -> None:
    """Wait until every limit of SMALL has passed, in which nothing comes."""
    raw.settimeout(3 * SMALL / 1000)
    with pytest.raises(TimeoutError):
        raw.recv(1)
    raw.settimeout(WAIT_S)


@pytest.mark.parametrize("is_second", [False, True], ids=["first", "second"])
def test_a_stall_of_ours_makes_no_client_late(start: Start, is_second: bool) -> None:
    """A request that came while the loop stood still is read before its connection is closed,
    whether it is the first on it or comes after an answer.
    """
    rig = start(header_timeout_ms=SMALL, keep_alive_ms=SMALL)
    assert any(is_served_after_a_stall(rig, is_second=is_second) for _ in range(ATTEMPTS))


def is_served_after_a_stall(rig: HttpRig, *, is_second: bool) -> bool:
    """Send a request into a stall; False = the limit had passed before it began, by a stall of
    ours, and nothing was tried.
    """
    asked = request("GET", "/version")
    with sent(rig, asked) if is_second else rig.connect() as raw:
        with nullcontext(raw) if is_second else sent(rig, asked) as last:
            reader = RawReader(last)  # the server has taken connections up to this one
            assert reader.answer().status == 200
        with stalled(rig):
            if not is_open(raw):
                return False
            raw.sendall(asked)
            expect_silence(raw)
        assert RawReader(raw).answer().status == 200
    return True


def test_an_announced_body_beyond_the_limit_gets_413_before_it_is_sent(start: Start) -> None:
    """The length in the head is enough for a 413; a client that asks is not told to continue."""
    rig = start(max_body_bytes=1024)
    with rig.connect() as raw:
        head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
        raw.sendall(head + b"content-length: 2000\r\n\r\n")
        answer = RawReader(raw).answer()
        assert (answer.status, answer.code) == (413, "body_too_large")


def test_a_chunked_body_beyond_the_limit_gets_413(start: Start) -> None:
    """A body without a length is counted as it comes and cut at the limit."""
    rig = start(max_body_bytes=1024)
    with rig.connect() as raw:
        raw.sendall(b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\n")
        raw.sendall(b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            raw.sendall(b"200\r\n" + b"a" * 512 + b"\r\n")
        answer = RawReader(raw).answer()
        assert (answer.status, answer.code) == (413, "body_too_large")


def test_a_client_that_sends_on_after_413_still_gets_the_answer(start: Start) -> None:
    """What comes after a refusal is thrown away for a moment, so no reset destroys the answer."""
    rig = start(max_body_bytes=1024)
    with rig.connect() as raw:
        raw.sendall(request("POST", "/tokenize", b"a" * 200_000))
        assert RawReader(raw).answer().status == 413


def test_a_dripped_body_gets_408(start: Start) -> None:
    """A body that is not complete in time is answered with 408."""
    rig = start(body_timeout_ms=SMALL)
    with rig.connect() as raw:
        raw.sendall(request("POST", "/tokenize", b"{}")[:-1])
        answer = RawReader(raw).answer()
        assert (answer.status, answer.code) == (408, "request_timeout")


def test_many_bodies_at_once_share_one_budget(start: Start) -> None:
    """Bodies that are being received together may not take more than their common budget."""
    rig = start(max_body_bytes=65_536, body_timeout_ms=60_000)
    with rig.connect() as late:
        held = [rig.connect() for _ in range(16)]
        try:
            for raw in held:
                raw.sendall(request("POST", "/tokenize", b"a" * 65_536)[:-1])
            for _ in range(3):  # answers on the same loop: the bodies before them were read
                assert rig.get("/version").status_code == 200
            late.sendall(request("POST", "/tokenize", b"a" * 65_536))
            answer = RawReader(late).answer()
            assert (answer.status, answer.code) == (503, "too_many_bodies")
            assert answer.headers["retry-after"] == "1"
        finally:
            for raw in held:
                raw.close()
    rig.wait_for_page(lambda page: page["num_connections"] <= 1)  # of `get`: the others have left
    assert rig.post("/tokenize", {"prompt": "a" * 60_000}).status_code == 200


def test_each_body_of_a_connection_is_counted_alone(start: Start) -> None:
    """A connection that is kept may send many bodies below the limit."""
    rig = start(max_body_bytes=1024)
    with rig.connect() as raw:
        reader = RawReader(raw)
        for _ in range(3):
            raw.sendall(request("POST", "/tokenize", b'{"prompt": "%b"}' % (b"a" * 900)))
            assert reader.answer().status == 200


def test_what_follows_a_chunked_body_is_no_header(rig: HttpRig) -> None:
    """A gateway before us that sets or strips headers need not look at the trailer section."""
    body = b'{"tokens":[104]}'
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    trailers = b"x-request-id: late\r\nhost: evil.example\r\n\r\n"
    head = b"POST /detokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with rig.connect() as raw:
        raw.sendall(head + chunks + trailers)
        answer = RawReader(raw).answer()
    assert (answer.status, answer.body) == (200, b'{"prompt":"h"}')
    assert answer.headers["x-request-id"] != "late"


def test_a_client_waiting_to_send_is_told_to_continue(rig: HttpRig) -> None:
    """`Expect: 100-continue` gets its leave as soon as the head is accepted."""
    with rig.connect() as raw:
        whole = request("POST", "/detokenize", b'{"tokens":[104]}', expect="100-continue")
        head, _, body = whole.partition(b"\r\n\r\n")
        raw.sendall(head + b"\r\n\r\n")
        reader = RawReader(raw)
        assert reader.head() == "HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(body)
        assert reader.answer().body == b'{"prompt":"h"}'


def test_more_connections_than_allowed_get_503(start: Start) -> None:
    """A connection beyond the limit is told so; one that is free again is served."""
    rig = start(max_connections=2)
    first, second = rig.connect(), rig.connect()
    with second:
        with first:
            for raw in (first, second):
                raw.sendall(request("GET", "/version"))
                assert RawReader(raw).answer().status == 200
            with rig.connect() as third:
                answer = RawReader(third).answer()
                assert (answer.status, answer.code) == (503, "too_many_connections")
                assert answer.headers["retry-after"] == "1"
        second.sendall(request("GET", "/version"))
        assert RawReader(second).answer().status == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        b"CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_400(rig: HttpRig, garbage: bytes) -> None:
    """Bytes that are no request of ours are answered with 400 in JSON, and the connection ends."""
    with rig.connect() as raw:
        raw.sendall(garbage)
        reader = RawReader(raw)
        answer = reader.answer()
        assert answer.status == 400
        assert b'"invalid_request_error"' in answer.body
        assert reader.is_closed()


UPGRADE = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAMAAABk"}


@pytest.mark.parametrize("num_packets", [1, 2])
def test_an_upgrade_is_ignored_and_its_body_arrives(rig: HttpRig, num_packets: int) -> None:
    """A client that offers another protocol (Java's does, always) is served in HTTP/1.1."""
    whole = request("POST", "/detokenize", b'{"tokens": [104]}', **UPGRADE)
    middle = len(whole) // num_packets
    with rig.connect() as raw:
        reader = RawReader(raw)
        raw.sendall(whole[:middle])
        raw.sendall(whole[middle:])
        assert reader.answer().body == b'{"prompt":"h"}'
        raw.sendall(request("GET", "/version"))
        assert reader.answer().status == 200


def test_an_http_1_0_client_gets_no_chunks(rig: HttpRig) -> None:
    """The end of a stream to an old client is the end of the connection."""
    with rig.connect() as raw:
        raw.sendall(completion("say old", stream=True).replace(b"HTTP/1.1", b"HTTP/1.0"))
        reader = RawReader(raw)
        assert "transfer-encoding" not in reader.head()
        assert reader.until(b"data: [DONE]\n\n").startswith(b"data: {")
        assert reader.is_closed()


def test_pipelined_requests_are_answered_in_order(rig: HttpRig) -> None:
    """Two requests in one packet get two answers, in their order."""
    with rig.connect() as raw:
        raw.sendall(completion("say first") + completion("say second"))
        reader = RawReader(raw)
        assert b"first" in reader.answer().body
        assert b"second" in reader.answer().body


@pytest.mark.parametrize(
    "bad", [b"garbage\r\n\r\n", request("POST", "/tokenize", b"", content_length="99999999")]
)
def test_a_bad_request_takes_no_answer_from_those_before_it(rig: HttpRig, bad: bytes) -> None:
    """Whoever sends a bad request behind good ones gets their answers, then the refusal."""
    with rig.connect() as raw:
        raw.sendall(completion("say first") + completion("say second") + bad)
        reader = RawReader(raw)
        assert b"first" in reader.answer().body
        assert b"second" in reader.answer().body
        assert reader.answer().status in (400, 413)
        assert reader.is_closed()


def test_a_body_that_is_late_does_not_end_the_answer_before_it(start: Start) -> None:
    """A stream goes on to its end, and only then is the next request refused."""
    rig = start(body_timeout_ms=SMALL)
    with rig.connect() as raw:
        late = request("POST", "/tokenize", b"{}")[:-1]
        raw.sendall(completion("hold", stream=True) + late)
        generate = rig.engine.wait_for(Generate)
        reader = RawReader(raw)
        reader.head()
        assert b'"text":"a"' in reader.chunk()
        expect_silence(raw)
        rig.engine.finish(generate)
        while reader.chunk():
            pass
        answer = reader.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")


def test_more_pipelined_requests_than_allowed_get_400_after_the_others(rig: HttpRig) -> None:
    """The first ones are served; the connection ends with a word, not with a reset."""
    with rig.connect() as raw:
        raw.sendall(request("GET", "/version") * 40)
        reader = RawReader(raw)
        statuses: list[int] = []
        while not statuses or statuses[-1] == 200:
            statuses.append(reader.answer().status)
        assert statuses == [200] * (MAX_PIPELINED_REQUESTS + 1) + [400]
        assert reader.is_closed()


def test_a_request_sent_during_an_answer_waits_for_it(rig: HttpRig) -> None:
    """A request that arrives while a stream runs is served after it."""
    with rig.connect() as raw:
        raw.sendall(completion("hold", stream=True))
        generate = rig.engine.wait_for(Generate)
        raw.sendall(request("GET", "/version"))
        reader = RawReader(raw)
        reader.head()
        assert b'"text":"a"' in reader.chunk()
        rig.engine.finish(generate)
        while reader.chunk():
            pass
        assert reader.answer().status == 200


def test_a_request_behind_a_stream_that_failed_is_answered(rig: HttpRig) -> None:
    """The connection ends after a failure, but not under a request of a client that could not know
    it yet.
    """
    with rig.connect() as raw:
        raw.sendall(completion("hold", stream=True) + request("GET", "/version"))
        reader = RawReader(raw)
        reader.head()
        reader.chunk()
        rig.tokenizer_epoch = 2  # the one that had the request has died
        assert b'"error"' in b"".join(iter(reader.chunk, b""))
        assert reader.answer().status == 200
        assert reader.is_closed()


def test_too_much_sent_ahead_cuts_the_connection(rig: HttpRig) -> None:
    """What is held for later is bounded: a client that floods during its answer is cut."""
    with rig.connect() as raw:
        raw.sendall(completion("hold", stream=True))
        generate = rig.engine.wait_for(Generate)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            raw.sendall(b"a" * 64_000_000)
        rig.engine.wait_for(Cancel, lambda c: c.operation_id == generate.operation_id)
