"""The load of `scripts/bench/scheduler_step` is steady and its figures are what they say."""

import asyncio

import pytest

from scripts.bench.benchmarks.scheduler_step import Load, bars, parser, run, spread_us


@pytest.mark.slow
def test_a_small_load_is_steady() -> None:
    """Rows stay in use, prompts start and end, the queue keeps its length."""
    load = Load("headrace", running=8, waiting=30, tenants=3)
    load.run(600)
    times = load.run(300)
    assert load.num_running in (7, 8)
    assert load.num_waiting == 30
    assert times.starts > 0
    assert all(count > 0 for count in times.decodes)
    assert sum(times.prefill_tokens) > 0
    assert all(len(each) == 300 for each in (times.plan, times.result, times.wall))
    assert len(load.run_fills(10)) == 10


def test_the_same_steps_are_run_again() -> None:
    """A load does the same each time, so that a step can be said to take the least it took."""
    first, again = (Load("fcfs", running=8, waiting=10, tenants=2).run(50) for _ in range(2))
    assert (first.decodes, first.prefill_tokens) == (again.decodes, again.prefill_tokens)
    least = [min(pair) for pair in zip(first.plan, again.plan, strict=True)]
    first.take_least(again)
    assert first.plan == least


@pytest.mark.slow
def test_a_report_has_every_figure_of_its_bars() -> None:
    """A bar whose figure is missing would fail as not measured."""
    words = ["--running", "16", "--waiting", "20", "--tenants", "2", "--steps", "20"]
    report = asyncio.run(run(parser().parse_args([*words, "--policy", "fcfs"])))
    assert [bar["name"] for bar in report["bars"]] == ["fcfs.running_16.waiting_ratio"]
    assert report["bars"][0]["value"] > 0


def test_the_limits_of_time_hold_at_the_size_they_were_set_for() -> None:
    """Only the length of the queue is judged at others."""
    names = [bar.name for bar in bars("headrace", [256, 1024])]
    assert names == [
        "headrace.running_256.step_us.p50",
        "headrace.running_256.step_us.p99",
        "headrace.running_256.waiting_ratio",
        "headrace.running_1024.waiting_ratio",
    ]


def test_spreads_are_in_microseconds() -> None:
    """From nanoseconds."""
    assert spread_us([1000, 3000]) == {"p50": 2.0, "p90": 2.8, "p99": 3.0, "max": 3.0}
