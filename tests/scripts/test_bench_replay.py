"""The arithmetic of `scripts/bench/replay`: the load, and how far off the simulator is."""

import pytest

from core.simulation.cases import configuration
from scripts.bench._client import Timeline
from scripts.bench._replay import KINDS, PHASES, errors, plan, real_figures, settings


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
