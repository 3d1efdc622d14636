"""What `scripts/bench/pressure` makes of two runs."""

from dataclasses import replace

from scripts.bench.benchmarks.pressure import BARS, COUNTERS, Job, Run, compared, jobs_of, parser
from scripts.bench.harness.client import Timeline
from scripts.bench.harness.report import build

JOBS = [Job("batch", [1, 2, 3], 2), Job("interactive", [4], 1, 1.0)]


def run_of(outputs: list[list[int]], elapsed_s: float, **counted: int) -> Run:
    """Return a run in which every request got these ids, the first after half a second."""
    timelines = [
        Timeline(token_ids=ids, intended_s=1.0, chunk_s=[1.5] * len(ids)) for ids in outputs
    ]
    return Run(timelines, elapsed_s, 2.0, dict.fromkeys(COUNTERS, 0) | {"steps": 10} | counted)


SWAPPED = {"preemptions": 5, "swapped_out_tokens": 9, "swapped_in_tokens": 9}


def holds(pressed: Run, roomy: Run) -> bool:
    """Tell whether all bars hold."""
    return bool(build("pressure", compared(JOBS, pressed, roomy), BARS, command=[])["ok"])


def test_equal_outputs_at_nearly_the_same_speed_are_right() -> None:
    """Everything was preempted and nothing shows."""
    pressed, roomy = run_of([[7, 8], [9]], 1.1, **SWAPPED), run_of([[7, 8], [9]], 1.0)
    assert holds(pressed, roomy)
    figures = compared(JOBS, pressed, roomy)
    assert round(figures["throughput_ratio"], 3) == round(1 / 1.1, 3)
    assert figures["pressed"]["interactive_ttft_ms"]["p50"] == 500


def test_what_pressure_must_not_cost() -> None:
    """Another id, an error, lost speed, work done twice, and a run without any swap all fail."""
    good, roomy = run_of([[7, 8], [9]], 1.0, **SWAPPED), run_of([[7, 8], [9]], 1.0)
    failed = run_of([[7, 8], [9]], 1.0, **SWAPPED)
    failed.timelines[0].error = "429"
    assert holds(good, roomy)
    for bad in (
        run_of([[7, 8], [1]], 1.0, **SWAPPED),
        failed,
        replace(good, elapsed_s=1.2),
        run_of([[7, 8], [9]], 1.0, **SWAPPED | {"steps": 12}),
        run_of([[7, 8], [9]], 1.0, **SWAPPED, recomputed_tokens=1),
        run_of([[7, 8], [9]], 1.0, **SWAPPED, recomputed_after_swap_tokens=1),
        run_of([[7, 8], [9]], 1.0),
    ):
        assert not holds(bad, roomy)


def test_batch_comes_at_once_and_interactive_requests_in_between() -> None:
    """All batch requests are sent at the start, no two interactive ones at one time."""
    jobs = jobs_of(parser().parse_args(["--batch", "3", "--interactive", "2"]))
    assert [job.traffic_class for job in jobs] == ["batch"] * 3 + ["interactive"] * 2
    times = [job.send_s for job in jobs]
    assert times[:3] == [0, 0, 0]
    assert 0 < times[3] < times[4]
