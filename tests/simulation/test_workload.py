"""From a trace to requests: times, lengths, owners and promises."""

import numpy as np
import pytest

from core.simulation.traces import Trace, parse_trace
from core.simulation.workload import (
    START_NS,
    Promise,
    as_recorded,
    resampled,
    with_class_mix,
    with_one_tenant,
    with_zipf_tenants,
)
from core.tenancy.classes import TrafficClass

NS_PER_S = 1_000_000_000


def trace_of(*lines: str, more: str = "") -> Trace:
    """Read lines of arrival, prompt, output and what `more` names."""
    return parse_trace([f"arrival_s,prompt_tokens,output_tokens{more}", *lines], "t")


def seconds(arrival_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[float]:
    """Return times since the start of the simulation, s."""
    return [float(each) for each in (arrival_ns - START_NS) / NS_PER_S]


def test_a_trace_begins_at_once_and_runs_at_the_given_speed() -> None:
    """The first arrival is time 0; twice as fast halves every gap."""
    workload = as_recorded(trace_of("10,1,1", "12,1,1", "16,1,1"), speed=2.0)
    assert seconds(workload.arrival_ns) == [0.0, 1.0, 3.0]
    assert workload.duration_s == 3.0


def test_equal_stamps_are_spread_evenly() -> None:
    """Three requests at 0 and one at 3 over three seconds each."""
    workload = as_recorded(trace_of("0,1,1", "0,1,1", "0,1,1", "3,1,1"), spread_s=3.0)
    assert seconds(workload.arrival_ns) == [0.0, 1.0, 2.0, 3.0]


def test_resampling_keeps_pairs_and_rate() -> None:
    """Lengths come in pairs of the trace; n requests at q a second take about n/q seconds."""
    workload = resampled(trace_of("0,10,1", "0,20,2"), qps=4.0, num_requests=4000, seed=1)
    pairs = set(zip(workload.prompt_tokens, workload.output_tokens, strict=True))
    assert pairs == {(10, 1), (20, 2)}
    assert workload.duration_s == pytest.approx(1000, rel=0.05)


def test_the_same_seed_gives_the_same_requests_at_every_rate() -> None:
    """Only closer together, so that loads are compared on equal terms."""
    trace = trace_of("0,10,1", "0,20,2")
    slow = resampled(trace, qps=1.0, num_requests=50, seed=7)
    fast = resampled(trace, qps=2.0, num_requests=50, seed=7)
    assert slow.prompt_tokens.tolist() == fast.prompt_tokens.tolist()
    assert np.allclose(seconds(slow.arrival_ns), 2 * np.array(seconds(fast.arrival_ns)))
    other = resampled(trace, qps=1.0, num_requests=50, seed=8)
    assert other.arrival_ns.tolist() != slow.arrival_ns.tolist()


def test_zipf_tenants_are_drawn_in_proportion() -> None:
    """The second is half as frequent as the first, the third a third."""
    workload = resampled(trace_of("0,1,1"), qps=1.0, num_requests=11_000, seed=1)
    counts = np.bincount(with_zipf_tenants(workload, 3, seed=2).tenant_index)
    assert counts == pytest.approx([6000, 3000, 2000], rel=0.05)


def test_classes_are_drawn_in_proportion() -> None:
    """One interactive request for three of batch."""
    workload = resampled(trace_of("0,1,1"), qps=1.0, num_requests=8000, seed=1)
    shares = {TrafficClass.INTERACTIVE: 1.0, TrafficClass.BATCH: 3.0}
    counts = np.bincount(with_class_mix(workload, shares, seed=2).traffic_class)
    assert counts == pytest.approx([2000, 0, 6000], rel=0.05)


def test_everything_may_be_one_tenants() -> None:
    """Whatever the trace says."""
    workload = with_one_tenant(as_recorded(trace_of("0,1,1,a", "0,1,1,b", more=",tenant")))
    assert (workload.tenants, workload.tenant_index.tolist()) == (("default",), [0, 0])


def test_promises_become_deadlines_and_caps() -> None:
    """A class without a promise has neither."""
    trace = trace_of("0,1,1,batch", "2,1,1,interactive", more=",class")
    promised = {TrafficClass.INTERACTIVE: Promise(0.5, 0.05)}
    workload = as_recorded(trace).with_promises(promised)
    assert workload.ttft_deadline_ns().tolist() == [0, START_NS + 2_500_000_000]
    assert workload.itl_cap_ns().tolist() == [0, 50_000_000]


def test_a_hashed_block_names_the_kv_blocks_in_it() -> None:
    """Equal names up to a point give equal digests up to there, and only full blocks have one."""
    trace = trace_of("0,1100,1,7 8 9", "0,1100,1,7 5 9", "0,300,1,7", more=",hash_ids_512")
    workload = as_recorded(trace)
    first, second, short = (workload.prefix_digests(index, 256) for index in range(3))
    assert [len(first), len(second), len(short)] == [4, 4, 1]
    assert first[:2] == second[:2]
    assert set(first[2:]).isdisjoint(second[2:])
    assert short == first[:1]
    assert len(set(first)) == 4
    assert {len(digest) for digest in first} == {16}


def test_the_recorded_max_tokens_is_what_was_asked_for() -> None:
    """Where it is not known the usual one, and never less than the output."""
    workload = as_recorded(trace_of("0,1,9,4", "0,1,2,4", "0,1,2,", more=",max_tokens"))
    assert workload.asked_tokens(6).tolist() == [9, 4, 6]
