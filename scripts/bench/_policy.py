"""`scripts/bench/policy`: which load each policy carries, on recorded traffic, in simulation.

Two studies: `references` checks the simulator against capacities known for a published machine
model, without noise; `strict` compares all policies with noise, over several seeds. Every run is
kept in a results file as soon as it is done, so that an interrupted study goes on where it stopped.

One load is carried if, in the class that fares worst, at most 1 % of the requests miss their
promise: the first token by its deadline and 99 % of the gaps within the cap (`ttft` in a study's
table: the first token only). Requests and the deadlines of the slow tiers are scaled together by
--quick: a deadline of half an hour lets a backlog grow for as long, and a short run would not
notice.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

from core.scheduler.settings import EngineSettings
from core.simulation import metrics
from core.simulation.hardware import HARDWARE
from core.simulation.noise import NoiseSettings
from core.simulation.run import END_OF_TEXT, SimulationSettings
from core.simulation.study import Case, Outcome, run_case
from core.simulation.traces import Trace, TraceError, read_trace
from core.simulation.workload import Promise, Workload, resampled, with_class_mix
from core.tenancy import TrafficClass
from scripts.bench import _report as report
from scripts.bench._capacity import capacity
from scripts.bench._report import Bar

MACHINE = "qoserve-a100"
NUM_REQUESTS = 40_000
QUICK_FACTOR = 5
WARM_UP = 0.1
MISS_LIMIT = 0.01
BLOCK_SIZE = 64
NS_PER_S = 1_000_000_000
FAR_NS = 10**6 * NS_PER_S
TRACES = {"code": "azure2023_code.csv", "conv": "azure2023_conv.csv"}
OVERLOAD_QPS = 6.0

FAST = Promise(6.0, 0.05)
SLOW_TIERS_S = (600.0, 1800.0)
SLOW_GAP_S = 0.4
SLOW_OUTPUT_S = 15 * SLOW_GAP_S  # of a slow tier's time, left for the output


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
STRICT_POLICIES: Mapping[str, tuple[str, ...]] = {
    "code": (
        "static", "fcfs-256", "priority-256", "srpf-256", "edf-192", "edf-224", "edf-256",
        "edf-288", "qoserve", "vtc-256", "dlpm-256", "urgency-density-256", "gap-edf",
    ),
    "conv": (
        "static", "fcfs-224", "priority-224", "srpf-224", "edf-192", "edf-224", "edf-256",
        "qoserve", "vtc-224", "dlpm-224", "urgency-density-224", "gap-edf",
    ),
}  # fmt: skip
GUESS_QPS = {"code": 3.3, "conv": 4.4}


@dataclass(frozen=True, slots=True)
class Point:
    """One run: everything its outcome depends on."""

    trace: str
    policy: str
    qps: float
    sigma: float
    margin: float
    seed: int
    scale: int  # requests and slow deadlines are divided by it


class Runs:
    """Outcomes by point, kept in a file of JSON lines."""

    def __init__(self, traces: Mapping[str, Trace], path: Path) -> None:
        """Take up what `path` already has."""
        self._traces = traces
        self._path = path
        self._known: dict[Point, dict[str, float]] = {}
        if path.exists():
            whole, _, cut_off = path.read_text().rpartition("\n")
            if cut_off:  # by an interruption
                path.write_text(f"{whole}\n" if whole else "")
            for line in whole.splitlines():
                entry = json.loads(line)
                self._known[Point(**entry["point"])] = entry["outcome"]

    def outcome(self, point: Point) -> dict[str, float]:
        """Return the figures of a point, from the file or by running it."""
        if point not in self._known:
            say(f"{point.trace} {point.policy} at {point.qps:.3f}/s, seed {point.seed}")
            self._known[point] = simulate(point, self._traces[point.trace])
            with self._path.open("a") as file:
                entry = {"point": asdict(point), "outcome": self._known[point]}
                file.write(json.dumps(entry) + "\n")
        return self._known[point]

    def capacity(self, point: Point, what: str, tolerance: float) -> float:
        """Return the load at which misses reach the limit, searched from `point.qps` on."""

        def carries(qps: float) -> bool:
            at = replace(point, qps=round(qps, 4))
            return self.outcome(at)[f"{what}_miss_share"] <= MISS_LIMIT

        return capacity(carries, point.qps, tolerance)[0]


def simulate(point: Point, trace: Trace) -> dict[str, float]:
    """Run one point and return what is kept of it."""
    workload = tiered(
        resampled(trace, qps=point.qps, num_requests=NUM_REQUESTS // point.scale, seed=point.seed),
        point,
    )
    hardware = HARDWARE[MACHINE]
    settings = SimulationSettings(
        engine=engine_settings(),
        hardware=hardware,
        num_blocks=hardware.kv_tokens // BLOCK_SIZE,
        noise=NoiseSettings(point.sigma),
        seed=point.seed,
    )
    case = Case(point.policy, point.policy, settings, point.margin)
    return kept_figures(run_case(case, workload, time.process_time))


def tiered(workload: Workload, point: Point) -> Workload:
    """Return `workload` in three tiers of equal size; the slow ones' deadlines are scaled."""
    slow = [Promise((tier_s - SLOW_OUTPUT_S) / point.scale, SLOW_GAP_S) for tier_s in SLOW_TIERS_S]
    classes = (TrafficClass.INTERACTIVE, TrafficClass.STANDARD, TrafficClass.BATCH)
    mixed = with_class_mix(workload, dict.fromkeys(classes, 1.0), point.seed + 1)
    return mixed.with_promises(dict(zip(classes, (FAST, *slow), strict=True)))


def kept_figures(outcome: Outcome) -> dict[str, float]:
    """Return the figures that studies and their readers look at."""
    history, times = outcome.history, outcome.times
    chosen = metrics.after_warm_up(history, WARM_UP)
    overall = metrics.summary(history, times, chosen)
    classes = metrics.by_class(history, times, chosen).values()
    return {
        "strict_miss_share": max(each.miss_share for each in classes),
        "ttft_miss_share": max(each.ttft_miss_share for each in classes),
        "late_gap_share": overall.late_gap_share,
        "goodput_rps": overall.goodput_rps,
        "goodput_tokens_per_s": overall.goodput_tokens_per_s,
        "refused": overall.num_refused,
        "is_stable": float(metrics.is_stable(history, WARM_UP)),
        "cpu_s": outcome.cpu_s,
        "steps": len(history.step_end_ns),
        "simulated_s": history.duration_s,
    }


def engine_settings() -> EngineSettings:
    """Return limits that never bind, so that only policy, memory and machine decide."""
    return EngineSettings(
        max_model_len=16_384,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_num_partial_prefills=1,
        block_size=BLOCK_SIZE,
        prefix_cache=False,
        pipeline_depth=1,
        policy="fcfs",
        max_queued_requests=10**7,
        max_queued_tokens=10**12,
        queue_deadline_ns=FAR_NS,
        request_timeout_ns=FAR_NS,
        kv_headroom_fraction=0.0,
        max_preemptions=8,
        poison_crashes=2,
        eos_token_ids=(END_OF_TEXT,),
    )


def check_references(runs: Runs, scale: int, tolerance: float) -> dict[str, Any]:
    """Return capacity, reference and their ratio for each reference."""
    found = {}
    for reference in REFERENCES:
        point = Point("code", reference.policy, reference.qps, 0.0, 0.0, 1, scale)
        qps = runs.capacity(point, reference.what, tolerance)
        found[reference.policy] = {
            "capacity_qps": qps,
            "reference_qps": reference.qps,
            "ratio": qps / reference.qps,
        }
    return found


def check_quickly(runs: Runs, scale: int) -> dict[str, Any]:
    """Return the misses at both ends of what each reference allows; between them is the limit."""
    found = {}
    for reference in REFERENCES:
        point = Point("code", reference.policy, reference.qps, 0.0, 0.0, 1, scale)
        figures = {}
        for end, factor in (("low", 1 - reference.tolerance), ("high", 1 + reference.tolerance)):
            at = replace(point, qps=round(reference.qps * factor, 4))
            figures[f"{end}_qps"] = at.qps
            figures[f"misses_at_{end}"] = runs.outcome(at)[f"{reference.what}_miss_share"]
        found[reference.policy] = figures
    return found


def compare(
    runs: Runs, scale: int, seeds: range, tolerance: float, policies: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Return each policy's strict capacity at 5 % noise, the median over `seeds`."""
    found: dict[str, Any] = {}
    for trace, names in policies.items():
        for name in names:
            points = [
                Point(trace, name, GUESS_QPS[trace], 0.05, 0.2, seed, scale) for seed in seeds
            ]
            capacities = [runs.capacity(point, "strict", tolerance) for point in points]
            found.setdefault(trace, {})[name] = {
                "capacity_qps": median(capacities),
                "lowest_qps": min(capacities),
                "highest_qps": max(capacities),
            }
        best = max(found[trace][name]["capacity_qps"] for name in names if name.startswith("edf-"))
        for name in names:
            figures = found[trace][name]
            figures["to_best_edf"] = figures["capacity_qps"] / best if best else nan
    return found


def reference_bars(quick: bool) -> Iterator[Bar]:
    """Yield the limits on the ratios, or on the misses at both ends of what is allowed."""
    for reference in REFERENCES:
        name = f"references.{reference.policy}"
        if quick:
            yield Bar(f"{name}.misses_at_low", "<=", MISS_LIMIT)
            yield Bar(f"{name}.misses_at_high", ">=", MISS_LIMIT)
            continue
        name = f"{name}.ratio"
        yield Bar(name, ">=", 1 - reference.tolerance)
        yield Bar(name, "<=", 1 + reference.tolerance)


def default_results() -> Path:
    """Return a file in the cache directory, so that nothing has to be named to go on."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    cache.mkdir(parents=True, exist_ok=True)
    return cache / "policy-runs.jsonl"


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = argparse.ArgumentParser(prog="scripts/bench/policy", description=__doc__)
    add = parse.add_argument
    add("--traces", type=Path, required=True, metavar="DIR", help="where the traces lie")
    add("--study", choices=("all", "references", "strict"), default="all", help="which study")
    add("--policies", metavar="A,B,…", help="of the strict study (default: all)")
    add("--seeds", type=int, default=3, help="of the strict study (default: 3)")
    add(
        "--quick",
        action="store_true",
        help="a fifth of the requests, references only at their bounds",
    )
    add("--results", type=Path, metavar="FILE", help="finished runs (default: in the cache folder)")
    add("--json", action="store_true", help="print one JSON object")
    return parse


def chosen_policies(text: str | None) -> dict[str, tuple[str, ...]]:
    """Return the policies to compare on each trace, those in `text` only."""
    wanted = set(text.split(",")) if text else None
    return {
        trace: tuple(name for name in names if wanted is None or name in wanted)
        for trace, names in STRICT_POLICIES.items()
    }


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Carry out the studies and return the report; raises OSError if a trace is missing."""
    try:
        traces = {name: read_trace(args.traces / file) for name, file in TRACES.items()}
    except TraceError as error:
        raise OSError(str(error)) from error
    runs = Runs(traces, args.results or default_results())
    scale, tolerance = (QUICK_FACTOR, 0.02) if args.quick else (1, 0.01)
    seeds = range(1, 2 if args.quick else 1 + args.seeds)
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    if args.study in ("all", "references"):
        figures["references"] = (
            check_quickly(runs, scale) if args.quick else check_references(runs, scale, tolerance)
        )
        bars += reference_bars(args.quick)
    if args.study in ("all", "strict"):
        policies = chosen_policies(args.policies)
        figures["strict"] = compare(runs, scale, seeds, tolerance, policies)
    return report.build("policy", figures, bars, command=sys.argv[1:])


def main() -> int:
    """Run the command line; the exit status is 1 if a bar fails, 2 if nothing could be measured."""
    args = parser().parse_args()
    return report.run("policy", lambda: run(args), args.json)


if __name__ == "__main__":
    sys.exit(main())
