"""The small parts of the http process on their own."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.clock import NS_PER_MS
from core.config.processes import HttpConfig
from core.messages.http import Chunk
from core.tenancy.classes import TrafficClass
from frontends.http.application.exchange import Exchange
from frontends.http.application.sse import EventTemplate
from frontends.http.connection.limits import ByteBudget, ConnectionLimits
from frontends.http.telemetry import StreamTimer, Telemetry

SLICE_BYTES = 16


async def written(parts: list[bytes]) -> list[dict[str, Any]]:
    """Return the ASGI messages of an exchange that writes `parts`."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {
        "path": "/",
        "method": "GET",
        "headers": [],
        "state": {"accepted_ns": 0, "connection": None},
    }
    exchange = Exchange(
        scope, receive, send, request_id="r", telemetry=Telemetry(), slice_bytes=SLICE_BYTES
    )
    for part in parts:
        await exchange.write(part)
    await exchange.write(b"", more=False)
    return messages


@given(parts=st.lists(st.binary(max_size=100), max_size=5))
def test_large_writes_are_cut_into_slices(parts: list[bytes]) -> None:
    """No single write is larger than a slice: a buffer holds its mark and one slice at most."""
    messages = asyncio.run(written(parts))
    assert b"".join(m["body"] for m in messages) == b"".join(parts)
    assert all(len(m["body"]) <= SLICE_BYTES for m in messages)
    assert [m["more_body"] for m in messages] == [True] * (len(messages) - 1) + [False]


def test_mark_and_slice_make_the_buffer() -> None:
    """What a slow reader may hold is the high-water mark and one more slice."""
    limits = ConnectionLimits.of(HttpConfig(write_buffer_bytes=65_536))
    assert 2 * limits.slice_bytes == 65_536


def test_a_budget_gives_no_more_than_it_has() -> None:
    """A refused reservation takes nothing; what is given back can be taken again."""
    budget = ByteBudget(10)
    assert budget.take(6)
    assert not budget.take(5)
    assert budget.take(4)
    budget.give(6)
    assert budget.used_bytes == 4


def test_times_of_a_stream_are_first_gaps_and_end() -> None:
    """One TTFT for an operation, a gap for each further output of a choice, one E2E; all of them
    counted for its tenant and in its class.
    """
    telemetry = Telemetry()
    timer = StreamTimer(telemetry, 1000 * NS_PER_MS, "acme", TrafficClass.STANDARD)
    timer.traffic_class = TrafficClass.BATCH
    for choice, at_ms in ((0, 1100), (1, 1110), (0, 1150), (1, 1170)):
        timer.output(Chunk("op", choice, "x"), at_ms * NS_PER_MS)
    timer.end(1200 * NS_PER_MS)
    for times, row in (
        (telemetry.by_class, TrafficClass.BATCH),
        (telemetry.by_tenant, telemetry.tenants.row("acme")),
    ):
        histograms = (times.ttft, times.itl, times.e2e)
        assert [histogram.counts[row].sum() for histogram in histograms] == [1, 2, 1]
        assert [histogram.sum for histogram in histograms] == pytest.approx([0.1, 0.11, 0.2])


@pytest.mark.parametrize("text", ["", "plain", 'quo"te', "line\nbreak", "\u2028 é 🌊", "\x00"])
def test_a_plain_chunk_is_the_full_chunk_without_extras(text: str) -> None:
    """The fast path makes the same bytes as the one for all fields."""
    template = EventTemplate({"id": "i"}, b',"text":', b"", has_usage=True)
    full = template.full(3, text, logprobs=None, finish_reason=None, extra={})
    assert template.plain(3, text) == full
    assert full.count(b"\n") == 2
