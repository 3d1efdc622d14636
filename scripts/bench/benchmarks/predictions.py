"""Measure how good the predicted starts of waiting requests are, at twice the load that is carried.

A simulated engine is asked every few seconds, as `headrace ctl show` asks, when some of its waiting
requests will start; each answer is compared with when they did. A prediction is good if the wait
that it tells is within 30 % of the wait that came, or within a tenth of a second, which is as long
as an answer may take. A range holds if the start lies in it, or a tenth of a second beside it.
Requests that were refused later are counted on their own: they were told a start that never came;
of how many of them it was doubted is counted, too.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from core.clock import NS_PER_S
from core.engine_core import policy_settings
from core.policy.base import UNFORESEEN, Forecast, WaitingRoom
from core.policy.cost_model import CostModel
from core.policy.headrace import HeadracePolicy
from core.policy.settings import PolicySettings
from core.request import Request
from core.simulation.policies import prepare
from core.simulation.run import Simulation
from scripts.bench.benchmarks.policy.capacity import OVERLOAD
from scripts.bench.benchmarks.policy.loads import LOADS, Point
from scripts.bench.benchmarks.policy.runs import Traces, settings_of
from scripts.bench.benchmarks.policy.study import GUESS_QPS, SIGMA
from scripts.bench.harness import report
from scripts.bench.harness.command import parser_of, run_command

TOLERANCE = 0.3
TOLERANCE_S = 0.1
TOLERANCE_NS = int(TOLERANCE_S * NS_PER_S)
GOOD_SHARE = 0.8
EVERY_NS = 2 * NS_PER_S
ASKED_AT_ONCE = 20
BANDS_S = ((0.0, 1.0), (1.0, 10.0), (10.0, 60.0), (60.0, float("inf")))


@dataclass(frozen=True, slots=True)
class Told:
    """What was said of a waiting request at one moment."""

    request: Request
    asked_ns: int
    forecast: Forecast

    @property
    def has_start(self) -> bool:
        """Whether anybody could tell."""
        return self.forecast.start_ns > 0

    @property
    def has_started(self) -> bool:
        """Whether it was served at all."""
        return self.request.first_start_ns > 0

    @property
    def predicted_s(self) -> float:
        """The wait from then on, as it was told."""
        return (self.forecast.start_ns - self.asked_ns) / NS_PER_S

    @property
    def actual_s(self) -> float:
        """The wait from then on, as it came."""
        return (self.request.first_start_ns - self.asked_ns) / NS_PER_S

    @property
    def whole_s(self) -> float:
        """The wait from its arrival on."""
        return (self.request.first_start_ns - self.request.arrival_ns) / NS_PER_S


class AskedPolicy(HeadracePolicy):
    """Policy headrace, asked now and then about some of those that wait."""

    def __init__(self, settings: PolicySettings, model: CostModel | None, seed: int) -> None:
        super().__init__(settings, model)
        self.told: list[Told] = []
        self._waiting: dict[Request, None] = {}
        self._next_ns = 0
        self._random = random.Random(seed)

    def add(self, request: Request) -> None:
        """Let a request wait, and remember it until it has started."""
        super().add(request)
        if not request.first_start_ns:
            self._waiting[request] = None

    def remove(self, request: Request) -> None:
        """Let it go."""
        super().remove(request)
        self._waiting.pop(request, None)

    def tend(self, room: WaitingRoom, now_ns: int) -> None:
        """Do what is due, then answer questions if it is time."""
        super().tend(room, now_ns)
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + EVERY_NS
            waiting = list(self._waiting)
            for request in self._random.sample(waiting, min(len(waiting), ASKED_AT_ONCE)):
                wait = self.why(request)
                self.told.append(Told(request, now_ns, wait.forecast if wait else UNFORESEEN))


def is_good(told: Told, wait_s: float) -> bool:
    """Tell whether a prediction was near enough, measured by a wait."""
    error_s = abs(told.predicted_s - told.actual_s)
    return error_s <= max(TOLERANCE * wait_s, TOLERANCE_S)


def is_in_range(told: Told) -> bool:
    """Tell whether it started neither before nor after what was told."""
    start_ns, forecast, tolerance_ns = told.request.first_start_ns, told.forecast, TOLERANCE_NS
    is_late = 0 < forecast.latest_ns < start_ns - tolerance_ns
    return forecast.soonest_ns <= start_ns + tolerance_ns and not is_late


def figures(told: Sequence[Told]) -> dict[str, Any]:
    """Return how good predictions were, in all and by how long the wait was."""
    predicted = [each for each in told if each.has_start]
    started = [each for each in predicted if each.has_started]
    doubted = [each for each in predicted if each.forecast.is_doubtful]
    refused = [each for each in predicted if not each.has_started]
    refused_doubted = [each for each in doubted if not each.has_started]
    return {
        "asked": len(told),
        "told_share": share(len(predicted), len(told)),
        "refused_later_share": share(len(refused), len(predicted)),
        "refused_of_doubtful_share": share(len(refused_doubted), len(doubted)),
        "refused_of_others_share": share(
            len(refused) - len(refused_doubted), len(predicted) - len(doubted)
        ),
        **goodness(started),
        "by_wait": {f"{low:g}-{high:g}s": goodness(list(within(started, low, high)))
                    for low, high in BANDS_S},
    }  # fmt: skip


def within(started: Sequence[Told], low_s: float, high_s: float) -> Iterator[Told]:
    """Yield those whose wait lay in a band."""
    return (each for each in started if low_s <= each.actual_s < high_s)


def goodness(started: Sequence[Told]) -> dict[str, Any]:
    """Return the share of good predictions, and to which side they err."""
    ratios = [each.predicted_s / each.actual_s for each in started if each.actual_s > 0]
    return {
        "compared": len(started),
        "good_share": share(sum(is_good(each, each.actual_s) for each in started), len(started)),
        "good_by_whole_wait_share": share(
            sum(is_good(each, each.whole_s) for each in started), len(started)
        ),
        "median_ratio": median(ratios) if ratios else None,
        "in_range_share": share(sum(map(is_in_range, started)), len(started)),
        "median_range_ratio": median(map(range_ratio, started)) if started else None,
    }


def range_ratio(told: Told) -> float:
    """Return how many times the soonest wait the latest one is, 0 without a latest one."""
    soonest_ns = max(told.forecast.soonest_ns - told.asked_ns, TOLERANCE_NS)
    return max(0, told.forecast.latest_ns - told.asked_ns) / soonest_ns


def share(part: int, whole: int) -> float | None:
    """Return a share, None of nothing."""
    return part / whole if whole else None


def ask(point: Point, traces: Traces) -> list[Told]:
    """Simulate a point and return what was told."""
    load = LOADS[point.load](point, traces.get(point.trace))
    settings, _ = prepare(point.policy, settings_of(point, load), point.margin)
    policy = AskedPolicy(policy_settings(settings.engine), settings.hardware, point.seed)
    Simulation(settings, load.workload, policy).run()
    return policy.told


async def run(args: argparse.Namespace) -> Mapping[str, Any]:
    """Ask under each trace; raises OSError if one is missing."""
    traces, found, bars = Traces(args.traces), {}, []
    for name in args.trace or GUESS_QPS:
        qps = OVERLOAD * GUESS_QPS[name]
        point = Point(name, "headrace", qps, SIGMA, 0.0, args.seed, args.scale, load="tenants")
        found[name] = {"qps": qps, **figures(ask(point, traces))}
        bars.append(report.Bar(f"{name}.good_share", ">=", GOOD_SHARE))
        bars.append(report.Bar(f"{name}.in_range_share", ">=", GOOD_SHARE))
    return report.build("predictions", found, bars, command=sys.argv[1:])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("predictions", __doc__)
    add = parse.add_argument
    add("--traces", type=Path, required=True, metavar="DIR", help="where the traces lie")
    add("--trace", action="append", choices=tuple(GUESS_QPS), help="which (default: all)")
    add("--scale", type=int, default=10, help="so many times fewer requests than in `policy`")
    add("--seed", type=int, default=1, help="of arrivals, noise and whom is asked about")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
