"""Streams beside a death are judged right, and processes are found and told apart."""

import os
import subprocess
import sys

import pytest

from scripts.bench.benchmarks.kill import Verdict, judge_stream
from scripts.bench.harness.client import Timeline
from scripts.bench.harness.processes import Process, family, look_up

REFERENCE = [7, 3, 9, 4, 1, 8, 2, 6, 5, 0, 11, 12, 13, 14, 15, 16]


def seen(ids: list[int], error: str = "", cut: bool = False) -> Timeline:
    """Return the timeline of a stream that delivered `ids`."""
    return Timeline(token_ids=ids, error=error, cut=cut, done=not error and not cut)


@pytest.mark.parametrize(
    ("timeline", "verdict"),
    [
        (seen(REFERENCE), Verdict.EQUAL),
        (seen(REFERENCE[:5], error="the tokenizer died"), Verdict.PREFIX),
        (seen([], error="connection reset"), Verdict.PREFIX),
        (seen(REFERENCE[:5]), Verdict.BROKEN),
        (seen(REFERENCE[:5] + REFERENCE[4:-1]), Verdict.BROKEN),
        (seen(REFERENCE[:5] + REFERENCE[6:] + [99]), Verdict.BROKEN),
        (seen([*REFERENCE, 99]), Verdict.BROKEN),
        (seen([*REFERENCE[:4], *range(50, 62)]), Verdict.DIVERGED),
        (seen(REFERENCE[:5], cut=True), Verdict.HUNG),
    ],
)
def test_a_stream_is_judged_by_its_ids(timeline: Timeline, verdict: Verdict) -> None:
    """Lost or repeated ids are told from an early end and from a near tie that fell otherwise."""
    assert judge_stream(REFERENCE, timeline) is verdict


def test_a_family_has_all_descendants_and_their_kinds() -> None:
    """A child is found below us, named by the module it runs, and dead when it has ended."""
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        found = {process.pid: process for process in family(os.getpid())}
        child.kill()
        child.wait()
    assert found[os.getpid()].is_alive()
    assert found[child.pid].kind == "server"
    assert not found[child.pid].is_alive()


def test_a_reused_pid_is_another_process() -> None:
    """The start time belongs to the name."""
    us = look_up(os.getpid())
    assert us is not None
    assert us.is_alive()
    assert us.cpu_s() > 0
    assert us.pss_bytes() > 2**20
    assert not Process(us.pid, us.parent, us.start_ticks - 1, us.kind).is_alive()
