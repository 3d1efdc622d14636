"""The streaming client and the loads, against a small server with a deterministic model."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.benchmarks.load.__main__ import parser, run
from scripts.bench.benchmarks.load.arrivals import poisson, read_trace
from scripts.bench.benchmarks.load.modes import (
    Load,
    Target,
    mixed_figures,
    run_closed,
    run_mixed,
    run_open,
)
from scripts.bench.harness.client import Client, Prompts, Timeline
from tests.support.http.fake_openai import FakeServer, next_id

BODY = {"model": "fake", "prompt": [5, 6, 7], "max_tokens": 4}


def load(**changes: float) -> Load:
    """Return a load small enough for a test."""
    sizes: dict[str, float] = {
        "streams": 2, "requests": 6, "prompt_tokens": 4, "output_tokens": 3, "rate": 100,
        "duration": 0.1, "decoders": 1, "long_prompt": 8, "every": 0.05, "quiet": 0.02,
        "repeats": 1, "warmup": 0, "scale": 1, "limit": 0, "max_tokens": 64,
    } | changes  # fmt: skip
    return Load(trace="", **sizes)  # type: ignore[arg-type]


async def stream(server: FakeServer, until: float = float("inf")) -> Timeline:
    """Send BODY to a running server."""
    async with server.running(), Client(server.url) as client:
        return await client.stream("/v1/completions", BODY, Timeline(), until)


def test_a_stream_becomes_a_timeline() -> None:
    """Ids, text, log-probabilities and usage arrive; each event with output has its time."""
    timeline = asyncio.run(stream(FakeServer()))
    ids = [5, 6, 7]
    for _ in range(4):
        ids.append(next_id(ids))
    assert timeline.token_ids == ids[3:]
    assert timeline.prompt_token_ids == ids[:3]
    assert len(timeline.chunk_s) == len(timeline.text) == len(timeline.logprobs) == 4
    assert (timeline.prompt_tokens, timeline.output_tokens) == (3, 4)
    assert timeline.done
    assert timeline.error == ""


def test_an_error_event_ends_the_timeline_with_its_message() -> None:
    """What came before the error is kept; the request does not count as done."""
    timeline = asyncio.run(stream(FakeServer(fail_after=2)))
    assert len(timeline.token_ids) == 2
    assert "the executor died" in timeline.error
    assert not timeline.done


def test_a_stream_is_cut_at_its_time() -> None:
    """`until` closes the connection: that is no error, and `cut` is set."""
    timeline = asyncio.run(stream(FakeServer(pause_s=5), until=time.perf_counter() + 0.05))
    assert timeline.cut
    assert timeline.error == ""


def test_a_client_leaves_after_so_much_output() -> None:
    """`leave_after` closes the connection amid the stream."""

    async def leave() -> Timeline:
        server = FakeServer(pause_s=0.001)
        async with server.running(), Client(server.url) as client:
            body = {**BODY, "max_tokens": 10_000}
            return await client.stream("/v1/completions", body, Timeline(), leave_after=2)

    timeline = asyncio.run(leave())
    assert timeline.cut
    assert 2 <= len(timeline.chunk_s) < 10_000
    assert timeline.error == ""


def test_a_server_that_is_not_there_is_an_error_of_the_request() -> None:
    """Nothing is raised; the timeline says what happened."""

    async def ask() -> Timeline:
        async with Client("http://127.0.0.1:1") as client:
            return await client.stream("/v1/completions", BODY, Timeline())

    assert "Connect" in asyncio.run(ask()).error


def test_latency_counts_from_the_intended_time() -> None:
    """A client that was late adds its lateness to the latency."""
    timeline = Timeline(intended_s=1.0, sent_s=3.0, ended_s=9.0, chunk_s=[4.0, 6.0, 7.0])
    assert (timeline.ttft_s, timeline.e2e_s, timeline.lag_s) == (3.0, 8.0, 2.0)
    assert timeline.itl_s() == [2.0, 1.0]


def test_prompts_never_share_their_first_id() -> None:
    """So no prompt finds another one's prefix in a cache."""
    prompts = Prompts(100, 200, seed=3)
    made = [prompts.make(5) for _ in range(100)]
    assert len({prompt[0] for prompt in made}) == 100
    assert all(len(prompt) == 5 and set(prompt) <= set(range(100, 200)) for prompt in made)


def test_the_closed_loop_sends_every_request_once() -> None:
    """The figures count all requests, tokens and no errors."""

    async def measure() -> dict[str, object]:
        server = FakeServer()
        async with server.running(), Client(server.url) as client:
            figures = await run_closed(Target(client, "fake", Prompts(1, 99, 1)), load())
        return {**figures, "seen": len(server.bodies)}

    figures = asyncio.run(measure())
    assert (figures["requests"], figures["completed"], figures["errors"]) == (6, 6, 0)
    assert (figures["prompt_tokens"], figures["output_tokens"], figures["seen"]) == (24, 18, 6)


def test_the_open_loop_does_not_wait_for_answers() -> None:
    """All requests of the plan are sent although the server is slower than they arrive."""

    async def measure() -> dict[str, object]:
        server = FakeServer(pause_s=0.05)
        async with server.running(), Client(server.url) as client:
            return await run_open(Target(client, "fake", Prompts(1, 99, 1)), load())

    figures = asyncio.run(measure())
    assert figures["completed"] == figures["requests"] == len(poisson(100, 0.1, 4, 3))


def test_long_prompts_arrive_beside_decoders() -> None:
    """The mixed load counts decoders and long prompts apart."""

    async def measure() -> dict[str, object]:
        server = FakeServer(pause_s=0.002)
        async with server.running(), Client(server.url) as client:
            return await run_mixed(Target(client, "fake", Prompts(1, 99, 1)), load())

    figures = asyncio.run(measure())
    assert (figures["long_prompts"], figures["long_completed"], figures["errors"]) == (2, 2, 0)
    assert figures["itl_ms"]


def test_a_stream_still_waiting_at_the_end_counts_with_its_wait() -> None:
    """A stall that outlasts the measurement is not forgotten."""
    stalled = Timeline(intended_s=0.5, chunk_s=[1.0, 1.1], cut=True)
    figures = mixed_figures([stalled], [], loaded=1.05, end=4.1)
    assert figures["itl_ms"]["max"] == pytest.approx(3000)


def test_a_trace_is_scaled_limited_and_cut(tmp_path: Path) -> None:
    """Times shrink by the scale, only the first rows are taken, long requests are cut to fit."""
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,class\n0,10,5,batch\n4,900,50,\n8,1,1,\n"
    )
    arrivals, num_cut = read_trace(str(path), scale=2.0, limit=2, max_tokens=100)
    assert [arrival.at_s for arrival in arrivals] == [0.0, 2.0]
    assert [arrival.traffic_class for arrival in arrivals] == ["batch", ""]
    assert (arrivals[1].prompt_tokens, arrivals[1].output_tokens) == (75, 25)
    assert num_cut == 1


def test_a_peer_is_measured_in_turns() -> None:
    """Figures are medians, ratios are those of the pairs, and a bar may hold on a ratio."""

    async def measure() -> dict[str, Any]:
        ours, peer = FakeServer(), FakeServer()
        async with ours.running(), peer.running():
            arguments = ["closed", "--url", ours.url, "--peer", peer.url, "--pairs", "3"]
            arguments += ["--streams", "2", "--output-tokens", "4", "--warmup", "0", "--json"]
            arguments += ["--bar", "ratio.closed.output_tokens>=1"]
            return await run(parser().parse_args(arguments))

    report = asyncio.run(measure())
    assert len(report["pairs"]) == 3
    assert report["figures"]["peer"]["closed"]["completed"] == 4
    assert report["figures"]["ratio"]["closed"]["output_tokens"] == 1
    assert report["ok"]
