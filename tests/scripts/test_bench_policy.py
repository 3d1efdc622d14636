"""The arithmetic of `scripts/bench/policy`: the search, the loads, and what becomes of a run."""

import json
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from core.simulation.clairvoyant import ORDERS
from core.simulation.traces import Trace, parse_trace
from core.simulation.workload import resampled
from core.tenancy.classes import TrafficClass
from scripts.bench.benchmarks.policy.__main__ import asked, bars_of, parser
from scripts.bench.benchmarks.policy.bisection import capacity
from scripts.bench.benchmarks.policy.capacity import OUR_WAYS, quartile_ratio, strict, wilson_upper
from scripts.bench.benchmarks.policy.company import idle_budget_used
from scripts.bench.benchmarks.policy.loads import (
    LAST,
    LOADS,
    NUM_REQUESTS,
    Point,
    flooded,
    shared,
    spare,
    tiered,
    tiers,
)
from scripts.bench.benchmarks.policy.runs import (
    Runs,
    classes_of,
    decisions_digest,
    simulate,
    without_words,
)
from scripts.bench.benchmarks.policy.studies import STUDIES
from scripts.bench.benchmarks.policy.study import Asked

SMALL = NUM_REQUESTS // 40  # a scale at which 40 requests are left


def small_trace() -> Trace:
    """Return two kinds of requests from two tenants, with contents."""
    lines = ["arrival_s,prompt_tokens,output_tokens,tenant,hash_ids_512"]
    return parse_trace([*lines, "0,600,4,a,1 2", "0,90,9,b,3"], "t")


def unread(name: str) -> Trace:
    """Stand for traces that nobody may need."""
    raise AssertionError(name)


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
    assert Runs(unread, path).outcome(point) == outcome
    assert path.read_text() == whole


def test_other_decisions_are_another_point(tmp_path: Path) -> None:
    """An outcome of policy headrace is kept under the code that decided."""
    point = Point("code", "headrace", 3.0, 0.0, 0.0, 1, SMALL)
    runs = Runs(lambda _name: small_trace(), tmp_path / "r.jsonl")
    runs.outcome(point)
    [line] = (tmp_path / "r.jsonl").read_text().splitlines()
    assert json.loads(line)["point"]["code"] == decisions_digest()


def talks() -> Trace:
    """Return two conversations of two turns; a tenth of all has one of them."""
    lines = ["arrival_s,prompt_tokens,output_tokens,hash_ids_512"]
    lines += [f"{n},600,5,0 {10 + n % 2}" for n in range(4)]
    return parse_trace(lines, "t")


@pytest.mark.parametrize("load", LOADS)
def test_every_load_can_be_run(load: str) -> None:
    """With figures for every class, and somebody served."""
    point = Point("t", "headrace", 2.0, 0.05, 0.0, 1, SMALL, load=load)
    found = simulate(point, talks() if load == "conversations" else small_trace())
    assert found["steps"] > 0
    assert sum(found["computed_by_class"].values()) > 0
    assert found["classes"].keys() <= {each.label for each in TrafficClass}
    assert ("administrative" in found["classes"]) == (load == "favoured")


@pytest.mark.parametrize("order", ORDERS)
def test_orders_that_know_the_future_are_policies_too(order: str) -> None:
    """And keep no more than can be kept."""
    point = Point("t", f"oracle-{order}", 2.0, 0.05, 0.0, 1, SMALL)
    ours = simulate(replace(point, policy="headrace"), small_trace())
    assert 0 < simulate(point, small_trace())["kept_requests"] <= ours["most_kept"]


def test_a_flooder_sends_ten_times_as_much_for_as_long() -> None:
    """In the order of arrival, both of one class."""
    workload = flooded(Point("t", "x", 2.0, 0.0, 0.0, 1, 8), small_trace()).workload
    counts = np.bincount(workload.tenant_index)
    assert workload.tenants == ("quiet", "flooder")
    assert counts[1] == 10 * counts[0]
    assert np.all(np.diff(workload.arrival_ns) >= 0)
    ends = [workload.arrival_ns[workload.tenant_index == each].max() for each in (0, 1)]
    assert ends[0] == pytest.approx(ends[1], rel=0.15)


def test_batch_requests_come_for_as_long_as_the_interactive_ones() -> None:
    """Only the interactive ones are promised anything."""
    load = shared(Point("t", "x", 2.0, 0.0, 0.0, 1, 8), small_trace())
    workload = load.workload
    kinds = (TrafficClass.INTERACTIVE, TrafficClass.BATCH)
    ends = [workload.arrival_ns[workload.traffic_class == each].max() for each in kinds]
    assert ends[0] == pytest.approx(ends[1], rel=0.2)
    classes = classes_of(load)
    assert (classes.interactive.ttft_ms, classes.interactive.itl_ms) == (6000, 50)
    assert (classes.batch.ttft_ms, classes.batch.pausable) == (0, True)


def test_a_spared_request_is_promised_nothing_and_nobody_comes_after_its_deadline() -> None:
    """So that it takes nobody's place, and no time is lost on the rest."""
    point = Point("t", "headrace", 2.0, 0.0, 0.0, 1, 100, spared=7)
    plain = tiers(replace(point, spared=0), small_trace())
    load = spare(plain, point)
    workload = load.workload
    assert workload.ttft_deadline_ns()[6] == 0
    assert np.count_nonzero(workload.traffic_class == LAST) == 1
    assert load.spared_deadline_ns == plain.workload.ttft_deadline_ns()[6]
    assert workload.arrival_ns[-1] <= load.spared_deadline_ns
    assert not classes_of(load).of(LAST).sheddable
    assert simulate(point, small_trace())["spared_in_time"] is True


def test_every_bar_names_its_study_and_ours_are_known() -> None:
    """A bar on a policy that is not compared would never hold."""
    for name in STUDIES:
        bars = [*bars_of(name, is_quick=False), *bars_of(name, is_quick=True)]
        assert all(bar.name.startswith(f"{name}.") for bar in bars)
    strict = {bar.name.split(".")[2] for bar in bars_of("strict", is_quick=True)}
    assert strict <= set(OUR_WAYS)


def test_shares_of_few_are_uncertain() -> None:
    """No false refusal of 60 is at most 5 %, of ten it is not; nothing is known of none."""
    assert wilson_upper(0, 60) <= 0.05 < wilson_upper(0, 10)
    assert wilson_upper(3, 60) == pytest.approx(0.117, abs=0.005)
    assert np.isnan(wilson_upper(0, 0))


def test_batch_is_to_compute_what_interactive_requests_leave() -> None:
    """Of what it computes alone a second, whatever each run lasts."""
    alone = {"arrivals_s": 10.0, "computed_by_class": {"batch": 1000}}
    beside = {"arrivals_s": 20.0, "computed_by_class": {"interactive": 800, "batch": 900}}
    assert idle_budget_used({"batch": alone, "shared": beside}) == pytest.approx(0.75)
    assert idle_budget_used({"batch": beside, "shared": beside}) > 0
    nothing = {"arrivals_s": 10.0, "computed_by_class": {"batch": 0}}
    assert idle_budget_used({"batch": nothing, "shared": beside}) == 0


def test_the_quartiles_that_fare_worst_and_best_are_compared() -> None:
    """By what they did not keep; nobody is compared with a quartile that kept everything."""
    assert quartile_ratio([0.9, 0.8, 0.95, 0.9]) == pytest.approx(4.0)
    assert np.isnan(quartile_ratio([1.0, 0.5, 0.5, 0.5]))


def test_a_miss_in_a_hundred_is_carried(tmp_path: Path) -> None:
    """Whatever 1 − 0.99 comes out as."""
    path = tmp_path / "r.jsonl"
    path.write_text("")
    for qps, share in ((1.0, 1 - 0.99), (1.05, 0.011)):
        point = asdict(Point("t", "edf-256", qps, 0.0, 0.0, 1, 5))
        with path.open("a") as file:
            entry = {"point": point, "outcome": {"strict_miss_share": share}}
            file.write(json.dumps(entry) + "\n")
    runs = Runs(unread, path)
    assert runs.capacity(Point("t", "edf-256", 1.0, 0.0, 0.0, 1, 5), "strict", 0.06) == 1.0


def test_what_is_said_of_the_code_that_decides_does_not_count() -> None:
    """Comments, docstrings and layout; every constant does."""
    plain = without_words("def f(x):\n    return x + 1\n")
    told = 'def f(x):\n    """Add."""\n    # one\n    return (x\n            + 1)\n'
    assert without_words(told) == plain != without_words("def f(x):\n    return x + 2\n")


def test_more_seeds_and_all_policies_may_be_asked_for_at_a_fifth() -> None:
    """One seed and four policies are only what is usual there."""
    words = ["--traces", "t", "--results", "r", "--quick"]
    usual, more = (
        asked(parser().parse_args([*words, *each]))
        for each in ([], ["--seeds", "3", "--policies", "all"])
    )
    assert (list(usual.seeds), len(usual.policies)) == ([1], 4)
    assert (list(more.seeds), more.is_quick) == ([1, 2, 3], True)
    assert more.policies > usual.policies


def test_further_seeds_are_searched_from_what_the_first_carried(tmp_path: Path) -> None:
    """Two runs are enough where they carry the same."""

    class Known(Runs):
        asked_for: ClassVar[list[Point]] = []

        def outcome(self, point: Point) -> dict[str, float]:
            self.asked_for.append(point)
            return {"strict_miss_share": float(point.qps > 4.1)}

    question = Asked(
        Known(unread, tmp_path / "r"), 5, range(1, 4), 0.02, True, frozenset({"static"})
    )
    row = strict(question)["code"]["static"]
    assert row["lowest_qps"] == row["highest_qps"] == pytest.approx(4.1, rel=0.02)
    assert sum((point.trace, point.seed) == ("code", 3) for point in Known.asked_for) == 2


@pytest.mark.parametrize("tolerance", ["0", "-0.1", "1"])
def test_loads_cannot_be_told_apart_by_nothing(tmp_path: Path, tolerance: str) -> None:
    """The search would not end; a share that it can use is taken as it is."""
    words = ["--traces", str(tmp_path), "--results", str(tmp_path / "runs"), "--quick"]
    with pytest.raises(ValueError, match="between 0 and 1"):
        asked(parser().parse_args([*words, "--tolerance", tolerance]))
    assert asked(parser().parse_args([*words, "--tolerance", "0.005"])).tolerance == 0.005
    assert asked(parser().parse_args(words)).tolerance == 0.02
