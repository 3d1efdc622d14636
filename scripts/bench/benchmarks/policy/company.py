"""Studies of `scripts/bench/policy` of what company costs: equal tenants, shared prefixes, a
flooder, batch work, and scarce memory.
"""

from collections.abc import Iterator, Mapping

from scripts.bench.benchmarks.policy.loads import FAST
from scripts.bench.benchmarks.policy.study import OURS, Asked, Figures
from scripts.bench.harness.report import Bar

QUIET_QPS = {"code": 0.42, "conv": 0.46}  # eleven times that is more than is carried
HALF_QPS = {"code": 2.0, "conv": 2.3}  # about half of what is carried
ARENA_QPS = 60.0
MOONCAKE_SPEED = 0.5
CONVERSATIONS_SPEED = 0.8
MEMORY_QPS = 4.4


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
