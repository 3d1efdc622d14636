"""The arithmetic of `scripts/bench/policy`: the search, and what a tier is promised."""

import json
from math import inf
from pathlib import Path

import numpy as np
import pytest

from core.simulation.traces import parse_trace
from core.simulation.workload import resampled
from core.tenancy import TrafficClass
from scripts.bench._capacity import capacity
from scripts.bench._policy import Point, Runs, tiered


@pytest.mark.parametrize("guess", [0.3, 3.9, 4.0, 4.2, 30.0])
def test_the_search_ends_around_the_limit(guess: float) -> None:
    """From any guess, within the tolerance."""
    low, high = capacity(lambda load: load <= 4.1, guess, 0.01)
    assert low <= 4.1 < high <= low * 1.01


@pytest.mark.parametrize(("verdict", "end"), [(True, 1), (False, 0)])
def test_a_limit_that_is_nowhere_near_is_not_invented(verdict: bool, end: int) -> None:
    """Infinity or zero stands for an end that was not found."""
    assert capacity(lambda load: verdict, 1.0, 0.01)[end] == (inf if verdict else 0.0)


def test_slow_deadlines_scale_with_the_run() -> None:
    """A fifth of 594 s and 1,794 s; the fast tier and all gaps stay."""
    trace = parse_trace(["arrival_s,prompt_tokens,output_tokens", "0,5,1"], "t")
    plain = resampled(trace, qps=1.0, num_requests=3000, seed=1)
    workload = tiered(plain, Point("code", "edf-256", 1.0, 0.0, 0.0, 1, 5))
    due_s = np.round((workload.ttft_deadline_ns() - workload.arrival_ns) / 1e9, 3)
    for each, ttft_s, itl_s in (
        (TrafficClass.INTERACTIVE, 6.0, 0.05),
        (TrafficClass.STANDARD, 118.8, 0.4),
        (TrafficClass.BATCH, 358.8, 0.4),
    ):
        own = workload.traffic_class == each
        assert own.sum() == pytest.approx(1000, rel=0.1)
        assert set(due_s[own].tolist()) == {ttft_s}
        assert set((workload.itl_cap_ns()[own] / 1e9).tolist()) == {itl_s}


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    """The results file is enough; there is not even a trace."""
    point = Point("code", "edf-256", 3.2, 0.05, 0.2, 1, 5)
    outcome = {"strict_miss_share": 0.25}
    path = tmp_path / "r.jsonl"
    entry = {
        "point": {
            "trace": "code", "policy": "edf-256", "qps": 3.2, "sigma": 0.05, "margin": 0.2,
            "seed": 1, "scale": 5,
        },
        "outcome": outcome,
    }  # fmt: skip
    whole = json.dumps(entry) + "\n"
    path.write_text(whole + whole[:50])  # an interruption has cut the second off
    assert Runs({}, path).outcome(point) == outcome
    assert path.read_text() == whole
