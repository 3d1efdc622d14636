"""The arithmetic of `scripts/bench/replay`: the load, and how far off the simulator is."""

from pathlib import Path

import pytest

from core.simulation.cases import configuration
from scripts.bench.benchmarks.replay import (
    KINDS,
    PHASES,
    Planned,
    complete,
    errors,
    plan,
    real_figures,
    settings,
)
from scripts.bench.harness.client import Timeline


def test_the_load_is_the_same_for_a_seed_and_has_an_overload() -> None:
    """In order, all kinds there, and in each phase as many as the phase says."""
    planned = plan(1000.0, 2.0, seed=3)
    assert planned == plan(1000.0, 2.0, seed=3)
    assert planned != plan(1000.0, 2.0, seed=4)
    times = [each.at_s for each in planned]
    assert times == sorted(times)
    assert {each.kind for each in planned} == set(KINDS)
    expected = sum(1000 * share * load * 2.0 for share, load in PHASES)
    assert len(planned) == pytest.approx(expected, rel=0.15)


def test_the_engine_and_the_simulator_can_be_set_so() -> None:
    """Three tenants with keys, and a short queue."""
    config = configuration({}, settings(), {})
    assert [tenant.name for tenant in config.tenants] == [kind.tenant for kind in KINDS]
    assert all(tenant.key_sha256 for tenant in config.tenants)


def test_errors_are_shares() -> None:
    """Of the real time, whatever the sign; refusals of all requests."""
    real = {
        "requests": 40, "refused": 4,
        "ttft_ms": {"p50": 100.0, "p99": 200.0}, "itl_ms": {"p50": 10.0, "p99": 20.0},
    }  # fmt: skip
    simulated = {
        "refused": 6,
        "ttft_ms": {"p50": 110.0, "p99": 100.0}, "itl_ms": {"p50": 10.0, "p99": 26.0},
    }  # fmt: skip
    assert errors(real, simulated) == pytest.approx({
        "ttft_p50": 0.1, "ttft_p99": 0.5, "itl_p50": 0.0, "itl_p99": 0.3, "refused": 0.05,
    })  # fmt: skip


def test_clients_see_refusals_and_times() -> None:
    """The first tenth is left out; an answer that ended with an error counts as refused."""
    served = [Timeline(intended_s=1.0, chunk_s=[1.5, 1.6], ended_s=1.6) for _ in range(9)]
    figures = real_figures([Timeline(error="lost"), *served, Timeline(error="429")])
    assert (figures["requests"], figures["refused"]) == (10, 1)
    assert figures["ttft_ms"]["p50"] == pytest.approx(500.0)
    assert figures["itl_ms"]["p50"] == pytest.approx(100.0)


def test_what_was_refused_at_the_door_is_replayed_too(tmp_path: Path) -> None:
    """Refused requests are replayed as the clients sent them, each once, in the order of time."""
    path = tmp_path / "recorded.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,tenant,class,max_tokens,outcome\n"
        "0.000000,50,20,chat,interactive,20,length\n"
        "3.000000,60,30,chat,interactive,30,queue_full_requests\n"
    )
    planned = [Planned(at_s, KINDS[0], 50, 20) for at_s in (1.0, 2.0, 4.0)]
    served, refused = Timeline(0.0), Timeline(0.0)
    served.chunk_s.append(0.5)
    refused.error = "429"
    complete(path, planned, [served, refused, refused])
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("0.000000", "length"), ("1.000000", "refused"), ("3.000000", "refused"),
    ]  # fmt: skip
