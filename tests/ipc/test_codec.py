"""Frames of typed messages: whatever else arrives is a FrameError."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.messages.http import Chunk, Chunks, Failed, Started, ToHttp, TokenLogprob
from core.messages.scheduler import Abort, Stop, ToScheduler
from core.messages.tokenizer import Cancel, Detokenize, TextPrompt, Tokenize, ToTokenizer
from ipc.codec import FRAME_VERSION, Codec
from ipc.errors import FrameError
from ipc.messages import ControlCall, ControlReply

CODECS: dict[str, Codec[object]] = {
    "http": Codec(ToHttp),
    "scheduler": Codec(ToScheduler),
    "tokenizer": Codec(ToTokenizer),
    "control": Codec(ControlReply),
}
MESSAGES: list[tuple[str, object]] = [
    ("http", Started("op", 5)),
    ("http", Chunks([Chunk("op", 0, "té", [1], [TokenLogprob(1, -0.5, "t", b"t", [])])])),
    ("http", Failed("op", "too long", "context_length_exceeded")),
    ("scheduler", Abort(7)),
    ("scheduler", Stop(7, 3)),
    ("scheduler", ControlCall(1, "cancel", {"request": "a", "deep": [{"x": None}]})),
    ("tokenizer", Cancel("op")),
    ("tokenizer", Tokenize("op", "tenant", TextPrompt("hello"))),
    ("tokenizer", Detokenize("op", "tenant", [1, 2, 3])),
    ("control", ControlReply(1, {"ok": True})),
]


@pytest.mark.parametrize(("union", "message"), MESSAGES)
def test_a_message_survives(union: str, message: object) -> None:
    """Decoding gives back what was encoded, with its type."""
    decoded = CODECS[union].decode(CODECS[union].encode(message))
    assert decoded == message
    assert type(decoded) is type(message)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x01",
        b"\x02\x80",
        b"\x01\x80",
        b"\x01\xc1",
        b"\x01" + b"\x91" * 100_000,
        b"\x01\xdd\xff\xff\xff\xff",
    ],
    ids=["empty", "no body", "version", "no tag", "not msgpack", "deep", "huge count"],
)
def test_what_is_no_message_is_a_frame_error(frame: bytes) -> None:
    """The known ways to be wrong."""
    with pytest.raises(FrameError):
        CODECS["scheduler"].decode(frame)


def test_deep_nesting_in_a_free_field_is_a_frame_error() -> None:
    """JSON-like arguments cannot exhaust the stack."""
    body = msgspec.msgpack.encode({"type": "control", "call_id": 1, "command": "x"})
    assert body[0] == 0x83
    nested = b"\xa4args\x81\xa1a" + b"\x91" * 200_000 + b"\xc0"
    with pytest.raises(FrameError):
        CODECS["scheduler"].decode(bytes([FRAME_VERSION, 0x84]) + body[1:] + nested)


def test_a_message_of_another_direction_is_a_frame_error() -> None:
    """A union accepts its own messages only."""
    with pytest.raises(FrameError):
        CODECS["http"].decode(CODECS["tokenizer"].encode(Cancel("op")))


def test_both_directions_have_a_size_bound() -> None:
    """A frame at the bound passes; one byte more is refused by sender and receiver."""
    frame = Codec[Cancel](Cancel).encode(Cancel("x" * 50))
    exact = Codec[Cancel](Cancel, max_frame_bytes=len(frame))
    assert exact.decode(exact.encode(Cancel("x" * 50))) == Cancel("x" * 50)
    with pytest.raises(FrameError, match="exceeds"):
        exact.encode(Cancel("x" * 51))
    with pytest.raises(FrameError):
        exact.decode(Codec[Cancel](Cancel).encode(Cancel("x" * 51)))


@settings(max_examples=300)
@given(st.sampled_from(sorted(CODECS)), st.binary(max_size=200), st.booleans())
def test_random_bytes_never_crash(union: str, body: bytes, has_version: bool) -> None:
    """Any bytes are a message of the union or a FrameError."""
    decode_or_refuse(union, bytes([FRAME_VERSION]) * has_version + body)


@settings(max_examples=500)
@given(
    st.sampled_from(MESSAGES),
    st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=4), st.integers(0, 6)), max_size=4),
)
def test_mutated_frames_never_crash(
    sample: tuple[str, object], cuts: list[tuple[int, bytes, int]]
) -> None:
    """A valid frame with bytes replaced, inserted or cut out is a message or a FrameError."""
    union, message = sample
    frame = CODECS[union].encode(message)
    for position, inserted, num_removed in cuts:
        at = position % (len(frame) + 1)
        frame = frame[:at] + inserted + frame[at + num_removed :]
    decode_or_refuse(union, frame)


def decode_or_refuse(union: str, frame: bytes) -> None:
    """Decode; whatever is accepted must encode again."""
    try:
        message = CODECS[union].decode(frame)
    except FrameError:
        return
    assert CODECS[union].decode(CODECS[union].encode(message)) is not None
