"""Studies of `scripts/bench/policy` of how much is carried: against known capacities, against other
policies, beyond what is carried, and against orders that know the future.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import nan, sqrt
from statistics import median

from core.simulation.clairvoyant import ORDERS
from scripts.bench.benchmarks.policy.loads import Point
from scripts.bench.benchmarks.policy.runs import MISS_LIMIT, ORACLE
from scripts.bench.benchmarks.policy.study import GUESS_QPS, OURS, Asked, Figures
from scripts.bench.harness.report import Bar

OVERLOAD = 2.0
OPTIMALITY_LOAD = 1.5  # of a load that is carried
SHED_SCALE = 40  # of the runs in which one request is not refused
WILSON_Z = 1.645  # one-sided 95 %
MOST_UNEVEN = 2.0  # misses of a quarter of lengths by those of another


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
        wanted = [name for name in names if name in asked.policies]
        rows = {name: _strict_capacity(asked, trace, name) for name in wanted}
        edf = [row["capacity_qps"] for name, row in rows.items() if name.startswith("edf-")]
        best = max(edf, default=nan)
        for row in rows.values():
            row["to_best_edf"] = row["capacity_qps"] / best if best else nan
        found[trace] = rows
    return found


def _strict_capacity(asked: Asked, trace: str, name: str) -> Figures:
    """Search the first seed from afar, the others from what that one carried, if it did."""
    point = our_point(asked, trace, name, GUESS_QPS[trace])
    first = asked.runs.capacity(point, "strict", asked.tolerance)
    near = replace(point, qps=first)
    capacities = [first]
    for seed in asked.seeds[1:] if first else ():
        again = replace(near, seed=seed)
        capacities.append(asked.runs.capacity(again, "strict", asked.tolerance, asked.tolerance))
    return {
        "capacities_qps": capacities,
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
