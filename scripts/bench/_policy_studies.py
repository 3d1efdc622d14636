"""The studies of `scripts/bench/policy`: which runs answer which question, and the bars on them.

Owns: the questions. Never knows: how a run is made or kept. A study is a function of `Asked` that
returns its figures; its bars name them by their path below the study's name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import nan, sqrt
from statistics import median
from typing import Any

from core.simulation.clairvoyant import ORDERS
from scripts.bench._policy_loads import FAST, Point
from scripts.bench._policy_runs import MISS_LIMIT, ORACLE, Runs
from scripts.bench._report import Bar

GUESS_QPS = {"code": 3.3, "conv": 4.4}
SIGMA = 0.05
MARGIN = 0.2
OURS = "headrace"
OVERLOAD = 2.0
QUIET_QPS = {"code": 0.42, "conv": 0.46}  # eleven times that is more than is carried
HALF_QPS = {"code": 2.0, "conv": 2.3}  # about half of what is carried
ARENA_QPS = 60.0
MOONCAKE_SPEED = 0.5
CONVERSATIONS_SPEED = 0.8
MEMORY_QPS = 4.4
MOST_UNEVEN = 2.0  # misses of a quarter of lengths by those of another
OPTIMALITY_LOAD = 1.5  # of a load that is carried
SHED_SCALE = 40  # of the runs in which one request is not refused
WILSON_Z = 1.645  # one-sided 95 %

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a study may use."""

    runs: Runs
    scale: int
    seeds: range
    tolerance: float
    is_quick: bool
    policies: frozenset[str]  # of the strict study; empty = all

    def point(self, trace: str, policy: str, qps: float, **more: Any) -> Point:
        """Return a run with the usual noise."""
        return Point(trace, policy, qps, SIGMA, MARGIN, self.seeds[0], self.scale, **more)


@dataclass(frozen=True, slots=True)
class Reference:
    """A capacity to reproduce: `what` counts as a miss, the load, and how far off it may be."""

    policy: str
    what: str
    qps: float
    tolerance: float


REFERENCES = (
    Reference("gap-edf", "strict", 4.46, 0.05),
    Reference("qoserve", "ttft", 4.89, 0.10),
    Reference("edf-256", "strict", 3.28, 0.10),
    Reference("sarathi-256", "strict", 2.40, 0.10),
)


def references(asked: Asked) -> Figures:
    """Compare capacities without noise with known ones; quickly: look at both ends only."""
    check = _both_ends if asked.is_quick else _capacity_ratio
    return {each.policy: check(asked, each) for each in REFERENCES}


def _capacity_ratio(asked: Asked, reference: Reference) -> Figures:
    point = Point("code", reference.policy, reference.qps, 0.0, 0.0, 1, asked.scale)
    qps = asked.runs.capacity(point, reference.what, asked.tolerance)
    return {"capacity_qps": qps, "reference_qps": reference.qps, "ratio": qps / reference.qps}


def _both_ends(asked: Asked, reference: Reference) -> Figures:
    """Return the misses at both ends of what a reference allows; between them is the limit."""
    point = Point("code", reference.policy, reference.qps, 0.0, 0.0, 1, asked.scale)
    figures = {}
    for end, factor in (("low", 1 - reference.tolerance), ("high", 1 + reference.tolerance)):
        at = replace(point, qps=round(reference.qps * factor, 4))
        figures[f"{end}_qps"] = at.qps
        figures[f"misses_at_{end}"] = asked.runs.outcome(at)[f"{reference.what}_miss_share"]
    return figures


def reference_bars(is_quick: bool) -> Iterator[Bar]:
    """Yield the limits on the ratios, or on the misses at both ends of what is allowed."""
    for each in REFERENCES:
        if is_quick:
            yield Bar(f"{each.policy}.misses_at_low", "<=", MISS_LIMIT)
            yield Bar(f"{each.policy}.misses_at_high", ">=", MISS_LIMIT)
        else:
            yield Bar(f"{each.policy}.ratio", ">=", 1 - each.tolerance)
            yield Bar(f"{each.policy}.ratio", "<=", 1 + each.tolerance)


OUR_WAYS: Mapping[str, Mapping[str, str]] = {
    "headrace-open": {"window": "off"},
    "headrace": {},
    "headrace-tenants": {"load": "tenants"},
}
"""Policy headrace by what is on: nothing but deadlines, class windows, class and tenant windows."""

STRICT_POLICIES: Mapping[str, tuple[str, ...]] = {
    "code": (
        "static", "fcfs-256", "priority-256", "srpf-256", "edf-192", "edf-224", "edf-256",
        "edf-288", "qoserve", "vtc-256", "dlpm-256", "urgency-density-256", "gap-edf", *OUR_WAYS,
    ),
    "conv": (
        "static", "fcfs-224", "priority-224", "srpf-224", "edf-192", "edf-224", "edf-256",
        "qoserve", "vtc-224", "dlpm-224", "urgency-density-224", "gap-edf", *OUR_WAYS,
    ),
}  # fmt: skip


def strict(asked: Asked) -> Figures:
    """Return each policy's strict capacity with noise, the median over seeds."""
    found: Figures = {}
    for trace, names in STRICT_POLICIES.items():
        wanted = [name for name in names if not asked.policies or name in asked.policies]
        rows = {name: _strict_capacity(asked, trace, name) for name in wanted}
        edf = [row["capacity_qps"] for name, row in rows.items() if name.startswith("edf-")]
        best = max(edf, default=nan)
        for row in rows.values():
            row["to_best_edf"] = row["capacity_qps"] / best if best else nan
        found[trace] = rows
    return found


def _strict_capacity(asked: Asked, trace: str, name: str) -> Figures:
    points = [
        replace(our_point(asked, trace, name, GUESS_QPS[trace]), seed=seed) for seed in asked.seeds
    ]
    capacities = [asked.runs.capacity(point, "strict", asked.tolerance) for point in points]
    return {
        "capacity_qps": median(capacities),
        "lowest_qps": min(capacities),
        "highest_qps": max(capacities),
    }


def our_point(asked: Asked, trace: str, name: str, qps: float) -> Point:
    """Return a run of a policy by its name here; ours has several."""
    if name in OUR_WAYS:
        return asked.point(trace, OURS, qps, **OUR_WAYS[name])
    return asked.point(trace, name, qps)


def strict_bars(_is_quick: bool) -> Iterator[Bar]:
    """Yield what our ways must carry, in capacities of the best fixed chunk."""
    for trace, without, within in (("code", 1.2, 1.15), ("conv", 1.06, 1.03)):
        yield Bar(f"{trace}.headrace-open.to_best_edf", ">=", without)
        yield Bar(f"{trace}.headrace-tenants.to_best_edf", ">=", within)


def overload(asked: Asked) -> Figures:
    """Send twice what is carried: goodput, the protected, and whether refusals were right."""
    found: Figures = {}
    for trace, guess in GUESS_QPS.items():
        point = our_point(asked, trace, "headrace-tenants", guess)
        carried = asked.runs.capacity(point, "strict", asked.tolerance)
        at_capacity = asked.runs.outcome(replace(point, qps=round(carried, 4)))
        twice = asked.runs.outcome(replace(point, qps=round(OVERLOAD * carried, 4)))
        num_protected, num_missed = twice["protected"]
        found[trace] = {
            "capacity_qps": carried,
            "goodput_ratio": twice["goodput_tokens_per_s"] / at_capacity["goodput_tokens_per_s"],
            "protected_requests": num_protected,
            "protected_miss_share": num_missed / num_protected if num_protected else nan,
            "shed_ratio_of_quartiles": quartile_ratio(twice["quartiles"]),
            **_false_sheds(asked, replace(point, qps=round(OVERLOAD * carried, 4), window="off")),
        }
    return found


def _false_sheds(asked: Asked, point: Point) -> Figures:
    """Repeat a small run for some refused requests, each let in once behind all others. A refusal
    was false if there was room for its prompt in time: one that would only have taken another's
    place was right to be refused.
    """
    small = replace(point, scale=SHED_SCALE)
    sample = asked.runs.outcome(small)["shed_sample"]
    let_in = [asked.runs.outcome(replace(small, spared=index + 1)) for index in sample]
    num_false = sum(each["spared_in_time"] for each in let_in)
    return {
        "sampled_sheds": len(sample),
        "false_sheds": num_false,
        "false_shed_share_at_most": wilson_upper(num_false, len(sample)),
    }


def wilson_upper(num_hits: int, count: int, z: float = WILSON_Z) -> float:
    """Return the upper end of Wilson's interval for a share (Wilson 1927); NaN of nothing."""
    if not count:
        return nan
    share = num_hits / count
    centre = share + z**2 / (2 * count)
    half = z * sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return (centre + half) / (1 + z**2 / count)


def quartile_ratio(kept: list[float]) -> float:
    """Return the largest share not kept over the smallest, of quartiles of prompt lengths."""
    missed = [1 - share for share in kept]
    return max(missed) / min(missed) if min(missed) > 0 else nan


def overload_bars(_is_quick: bool) -> Iterator[Bar]:
    """Yield the bars of both traces."""
    for trace in GUESS_QPS:
        yield Bar(f"{trace}.goodput_ratio", ">=", 0.95)
        yield Bar(f"{trace}.protected_miss_share", "<=", 0.001)
        yield Bar(f"{trace}.false_shed_share_at_most", "<=", 0.05)


def fairness(asked: Asked) -> Figures:
    """Compare tenants that are backlogged all through windows of 30 s, charged in tokens."""
    names = (OURS, "vtc-256", "fcfs-256")
    points = {
        name: asked.point("arena", name, ARENA_QPS, load="fairness", charge="tokens")
        for name in names
    }
    wanted = ("max_difference_tokens", "jain_index", "compared_windows")
    outcomes = {name: asked.runs.outcome(point) for name, point in points.items()}
    return {name: {key: outcome[key] for key in wanted} for name, outcome in outcomes.items()}


def fairness_bars(_is_quick: bool) -> Iterator[Bar]:
    """Yield the bars of our policy."""
    yield Bar(f"{OURS}.max_difference_tokens", "<=", 5000)
    yield Bar(f"{OURS}.jain_index", ">=", 0.99)
    yield Bar(f"{OURS}.compared_windows", ">=", 1)


def locality(asked: Asked) -> Figures:
    """Compare cache hits with those of the longest cached prefix first (DLPM with one tenant), and
    tell how much depends on the order: what first come, first served has.
    """
    return {
        load: _locality(asked, load, speed)
        for load, speed in (("locality", MOONCAKE_SPEED), ("conversations", CONVERSATIONS_SPEED))
    }


def _locality(asked: Asked, load: str, speed: float) -> Figures:
    points = {
        name: asked.point("mooncake", name, speed, load=load)
        for name in (OURS, "dlpm-2048", "fcfs-2048")
    }
    shares = {name: asked.runs.outcome(point)["cached_share"] for name, point in points.items()}
    longest = shares["dlpm-2048"]
    return {
        "cached_share": shares,
        "to_longest_prefix": shares[OURS] / longest,
        "fcfs_to_longest_prefix": shares["fcfs-2048"] / longest,
    }


def locality_bars(_is_quick: bool) -> Iterator[Bar]:
    """Yield the bar on both ratios."""
    yield Bar("locality.to_longest_prefix", ">=", 0.97)
    yield Bar("conversations.to_longest_prefix", ">=", 0.97)


def isolation(asked: Asked) -> Figures:
    """Put a flooder of the same class beside a quiet tenant, and compare with the order that serves
    that one strictly first: what it takes longer there is what any company costs.
    """
    found: Figures = {}
    for trace, qps in QUIET_QPS.items():
        points = {
            load: asked.point(trace, OURS, qps, load=load)
            for load in ("alone", "favoured", "flooded")
        }
        quiet = {load: asked.runs.outcome(p)["tenants"]["quiet"] for load, p in points.items()}
        p99_s = {load: each["ttft_p99_s"] for load, each in quiet.items()}
        found[trace] = {
            **{f"{load}_ttft_p99_s": seconds for load, seconds in p99_s.items()},
            "later_in_gap_caps": (p99_s["flooded"] - p99_s["alone"]) / FAST.itl_s,
            "favoured_later_in_gap_caps": (p99_s["favoured"] - p99_s["alone"]) / FAST.itl_s,
            "later_than_favoured_in_gap_caps": (p99_s["flooded"] - p99_s["favoured"]) / FAST.itl_s,
            "miss_share": quiet["flooded"]["miss_share"],
        }
    return found


def isolation_bars(_is_quick: bool) -> Iterator[Bar]:
    """Yield the bars: a gap cap, and a step of one's own, which is no longer than that, later than
    alone, and later than any order could have it.
    """
    for trace in QUIET_QPS:
        yield Bar(f"{trace}.later_in_gap_caps", "<=", 2.0)
        yield Bar(f"{trace}.later_than_favoured_in_gap_caps", "<=", 2.0)
        yield Bar(f"{trace}.miss_share", "<=", 0.01)


def colocation(asked: Asked) -> Figures:
    """Put more batch requests than fit beside interactive ones."""
    found: Figures = {}
    for trace, qps in HALF_QPS.items():
        points = {
            load: asked.point(trace, OURS, qps, load=load)
            for load in ("reserved", "shared", "batch")
        }
        outcomes = {load: asked.runs.outcome(point) for load, point in points.items()}
        shared = outcomes["shared"]["classes"]["interactive"]
        found[trace] = {
            "idle_budget_used": idle_budget_used(outcomes),
            "miss_share": shared["miss_share"],
            "itl_p99_s": shared["itl_p99_s"],
            "more_protected_misses": outcomes["shared"]["protected"][1]
            - outcomes["reserved"]["protected"][1],
        }
    return found


def idle_budget_used(outcomes: Mapping[str, Figures]) -> float:
    """Return the batch tokens a second beside interactive requests, over what these leave of the
    tokens a second that batch alone fills steps of the same length with.
    """
    full = _tokens_per_s(outcomes["batch"], "batch")
    left = full - _tokens_per_s(outcomes["shared"], "interactive")
    return _tokens_per_s(outcomes["shared"], "batch") / left if left > 0 else 0.0


def _tokens_per_s(outcome: Figures, traffic_class: str) -> float:
    return float(outcome["computed_by_class"][traffic_class] / outcome["arrivals_s"])


def colocation_bars(_is_quick: bool) -> Iterator[Bar]:
    """Yield the bars of both traces."""
    for trace in HALF_QPS:
        yield Bar(f"{trace}.idle_budget_used", ">=", 0.95)
        yield Bar(f"{trace}.miss_share", "<=", 0.01)
        yield Bar(f"{trace}.itl_p99_s", "<=", FAST.itl_s)
        yield Bar(f"{trace}.more_protected_misses", "<=", 0)


def memory(asked: Asked) -> Figures:
    """Let a small pool decide, then let outputs turn out longer than any before."""
    found = {}
    for load in ("memory", "storm"):
        outcome = asked.runs.outcome(asked.point("conv", OURS, MEMORY_QPS, load=load))
        names = ("kv_use", "recomputed_share", "preemptions")
        found[load] = {name: outcome[name] for name in names}
    return found


def memory_bars(_is_quick: bool) -> Iterator[Bar]:
    """Yield the bars of both loads."""
    yield Bar("memory.kv_use", ">=", 0.9)
    yield Bar("memory.recomputed_share", "<=", 0.01)
    yield Bar("storm.recomputed_share", "<=", 0.05)


def optimality(asked: Asked) -> Figures:
    """Compare with orders that know the future, and all with what nobody can exceed."""
    found: Figures = {}
    for trace, guess in GUESS_QPS.items():
        ours = asked.point(trace, OURS, OPTIMALITY_LOAD * guess, window="off")
        outcome = asked.runs.outcome(ours)
        orders = {
            name: asked.runs.outcome(replace(ours, policy=f"{ORACLE}{name}")) for name in ORDERS
        }
        kept = {name: each["kept_requests"] for name, each in orders.items()}
        even = [name for name, each in orders.items() if _is_even(each)]
        most = max(outcome["kept_requests"], *kept.values())
        found[trace] = {
            "kept": outcome["kept_requests"],
            "kept_by_orders": kept,
            "to_best_order": outcome["kept_requests"] / max(1, *kept.values()),
            "even_orders": even,
            "to_best_even_order": outcome["kept_requests"] / max([1, *(kept[n] for n in even)]),
            "most_that_can_be_kept": outcome["most_kept"],
            "above_what_can_be_kept": most - outcome["most_kept"],
        }
    return found


def _is_even(outcome: Figures) -> bool:
    """Tell whether refusals were as even over lengths as policy headrace's must be."""
    return quartile_ratio(outcome["quartiles"]) <= MOST_UNEVEN


def optimality_bars(_is_quick: bool) -> Iterator[Bar]:
    """Yield the bars of both traces."""
    for trace in GUESS_QPS:
        yield Bar(f"{trace}.to_best_order", ">=", 0.95)
        yield Bar(f"{trace}.above_what_can_be_kept", "<=", 0)


def cost(asked: Asked) -> Figures:
    """Tell how fast a simulation runs, at a load that is carried."""
    found = {}
    for trace, qps in GUESS_QPS.items():
        outcome = asked.runs.outcome(asked.point(trace, OURS, qps))
        found[trace] = {
            "times_real_time": outcome["simulated_s"] / outcome["cpu_s"],
            "us_per_step": outcome["cpu_s"] / outcome["steps"] * 1e6,
        }
    return found


def cost_bars(_is_quick: bool) -> Iterator[Bar]:
    """Yield nothing: these are reported; `scripts/bench/scheduler_step` has the bars."""
    yield from ()


@dataclass(frozen=True, slots=True)
class Study:
    """A question and its bars."""

    ask: Callable[[Asked], Figures]
    bars: Callable[[bool], Iterator[Bar]]


STUDIES: Mapping[str, Study] = {
    "references": Study(references, reference_bars),
    "strict": Study(strict, strict_bars),
    "overload": Study(overload, overload_bars),
    "fairness": Study(fairness, fairness_bars),
    "locality": Study(locality, locality_bars),
    "isolation": Study(isolation, isolation_bars),
    "colocation": Study(colocation, colocation_bars),
    "memory": Study(memory, memory_bars),
    "optimality": Study(optimality, optimality_bars),
    "cost": Study(cost, cost_bars),
}
