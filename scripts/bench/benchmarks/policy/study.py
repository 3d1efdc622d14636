"""What the studies of `scripts/bench/policy` are made of: a question, what it may use, its bars.

Never knows: which studies there are, or how a run is made or kept.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from scripts.bench.benchmarks.policy.loads import Point
from scripts.bench.benchmarks.policy.runs import Runs
from scripts.bench.harness.report import Bar

Figures = dict[str, Any]
GUESS_QPS = {"code": 3.3, "conv": 4.4}
SIGMA = 0.05
MARGIN = 0.2
OURS = "headrace"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a study may use."""

    runs: Runs
    scale: int
    seeds: range
    tolerance: float
    is_quick: bool
    policies: frozenset[str]  # of the strict study

    def point(self, trace: str, policy: str, qps: float, **more: Any) -> Point:
        """Return a run with the usual noise."""
        return Point(trace, policy, qps, SIGMA, MARGIN, self.seeds[0], self.scale, **more)


@dataclass(frozen=True, slots=True)
class Study:
    """A question and its bars."""

    ask: Callable[[Asked], Figures]
    bars: Callable[[bool], Iterator[Bar]]
