"""One simulated run of `scripts/bench/policy`, and the file of those that are done.

Owns: what determines a run (`Point`), its figures, and that none is made twice. Never knows: what
is asked of the runs (`studies`), what arrives in them (`loads`).
"""

import ast
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from core.clock import NS_PER_S
from core.config.scheduling import PolicyConfig, SchedulerConfig
from core.errors import RejectionReason
from core.policy.limits import Limits
from core.scheduler.settings import EngineSettings
from core.simulation import metrics, prices
from core.simulation.cases import promising
from core.simulation.clairvoyant import prepare_order
from core.simulation.hardware import HARDWARE
from core.simulation.history import History
from core.simulation.noise import NoiseSettings
from core.simulation.relaxation import most_promises_kept
from core.simulation.run import END_OF_TEXT, Simulation, SimulationSettings
from core.simulation.study import Case, Outcome, run_case, run_policy
from core.simulation.traces import Trace, TraceError, read_trace
from core.simulation.workload import START_NS
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from scripts.bench.benchmarks.policy.bisection import STRIDE, capacity
from scripts.bench.benchmarks.policy.loads import LAST, LOADS, Load, Point

WARM_UP = 0.1
MISS_LIMIT = 0.01
ROUNDING = 1e-9  # of a share that is exactly the limit
BLOCK_SIZE = 64
FAR_NS = 10**6 * 10**9
SAMPLED_SHEDS = 60
LARGEST_STEP = 4096  # tokens, of policy headrace and of the bound on all policies
ORACLE = "oracle-"  # before the name of an order that knows the future
MAX_TENANTS_KEPT = 4  # whose figures are kept one by one
TRACES = {
    "code": "azure2023_code.csv",
    "conv": "azure2023_conv.csv",
    "arena": "vtc_arena_27tenants.csv",
    "mooncake": "mooncake_conversation.csv.gz",
}
DECISIONS = ("core/policy", "core/scheduler", "core/kv_cache", "core/engine_core.py")
ROOT = Path(__file__).resolve().parents[4]

Figures = dict[str, Any]


@cache
def decisions_digest() -> str:
    """Return a name for the code that decides: other code, other outcomes. What is said about it
    does not count.
    """
    digest = hashlib.sha256()
    for place in DECISIONS:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(without_words(file.read_text()).encode())
    return digest.hexdigest()[:16]


def without_words(source: str) -> str:
    """Return what a module does, without comments, docstrings and its looks."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def is_text(statement: ast.stmt) -> bool:
    """Tell whether a statement is nothing but a string."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


class Traces:
    """The traces of a folder, read when they are first needed."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet."""
        self._folder = folder
        self._read: dict[str, Trace] = {}

    def get(self, name: str) -> Trace:
        """Return a trace by its name in TRACES; raises OSError."""
        if name not in self._read:
            try:
                self._read[name] = read_trace(self._folder / TRACES[name])
            except TraceError as error:
                raise OSError(str(error)) from error
        return self._read[name]


class Runs:
    """Outcomes by point, kept in a file of JSON lines."""

    def __init__(self, trace: Callable[[str], Trace], path: Path) -> None:
        """Take up what `path` already has; `trace` returns one by name."""
        self._trace = trace
        self._path = path
        self._known: dict[Point, Figures] = {}
        if path.exists():
            whole, _, cut_off = path.read_text().rpartition("\n")
            if cut_off:  # by an interruption
                path.write_text(f"{whole}\n" if whole else "")
            for line in whole.splitlines():
                entry = json.loads(line)
                self._known[Point(**entry["point"])] = entry["outcome"]

    def outcome(self, point: Point) -> Figures:
        """Return the figures of a point, from the file or by running it."""
        if point.policy.startswith("headrace"):
            point = replace(point, code=decisions_digest())
        if point not in self._known:
            say(
                f"{point.load} {point.trace} {point.policy} at {point.qps:.3f}/s, seed {point.seed}"
            )
            self._known[point] = simulate(point, self._trace(point.trace))
            with self._path.open("a") as file:
                entry = {"point": asdict(point), "outcome": self._known[point]}
                file.write(json.dumps(entry) + "\n")
        return self._known[point]

    def capacity(self, point: Point, what: str, tolerance: float, stride: float = STRIDE) -> float:
        """Return the load at which misses reach the limit, searched from `point.qps` on."""

        def carries(qps: float) -> bool:
            at = replace(point, qps=round(qps, 4))
            return float(self.outcome(at)[f"{what}_miss_share"]) <= MISS_LIMIT + ROUNDING

        return capacity(carries, point.qps, tolerance, stride)[0]


def simulate(point: Point, trace: Trace) -> Figures:
    """Run one point and return what is kept of it."""
    load = LOADS[point.load](point, trace)
    settings = settings_of(point, load)
    outcome = carried_out(point, load, settings)
    kept = kept_figures(outcome)
    if point.spared:
        first_s = outcome.times.ttft_s[point.spared - 1]
        arrival_ns = load.workload.arrival_ns[point.spared - 1]
        kept["spared_in_time"] = bool(first_s <= (load.spared_deadline_ns - arrival_ns) / NS_PER_S)
    if point.load == "tiers" and point.policy == "headrace":
        kept["most_kept"] = most_promises_kept(load.workload, settings.hardware, LARGEST_STEP)
    return kept


def settings_of(point: Point, load: Load) -> SimulationSettings:
    """Return the machine and the engine of a point."""
    hardware = HARDWARE[load.machine]
    return SimulationSettings(
        engine=engine_settings(point, load),
        hardware=hardware,
        num_blocks=(load.kv_tokens or hardware.kv_tokens) // BLOCK_SIZE,
        max_tokens=load.max_tokens if point.policy.startswith("headrace") else 0,
        noise=NoiseSettings(point.sigma),
        seed=point.seed,
    )


def carried_out(point: Point, load: Load, settings: SimulationSettings) -> Outcome:
    """Run the policy of a point, or an order that knows the future."""
    name = point.policy.removeprefix(ORACLE)
    if name != point.policy:
        changed, oracle = prepare_order(name, load.workload, settings, point.margin)
        simulation = Simulation(changed, load.workload, oracle)
        return run_policy(point.policy, simulation, time.process_time)
    case = Case(point.policy, point.policy, settings, point.margin)
    return run_case(case, load.workload, time.process_time)


def engine_settings(point: Point, load: Load) -> EngineSettings:
    """Return limits that do not bind, so that only policy, memory and machine decide; the memory
    rules of policy headrace are its default ones.
    """
    usual = SchedulerConfig()
    is_ours = point.policy.startswith("headrace")
    return EngineSettings(
        max_model_len=load.max_model_len,
        max_num_seqs=256,
        max_num_batched_tokens=LARGEST_STEP if is_ours else 2048,
        max_num_partial_prefills=1,
        block_size=BLOCK_SIZE,
        prefix_cache=bool(load.workload.hash_ids),
        pipeline_depth=1,
        policy="fcfs",
        max_queued_requests=10**7,
        max_queued_tokens=10**12,
        queue_deadline_ns=FAR_NS,
        request_timeout_ns=FAR_NS,
        kv_headroom_fraction=usual.kv_headroom_fraction if is_ours else 0.0,
        max_preemptions=usual.max_preemptions if is_ours else 8,
        poison_crashes=2,
        eos_token_ids=(END_OF_TEXT,),
        tuning=tuning(point),
        limits=Limits(classes_of(load)),
    )


def tuning(point: Point) -> PolicyConfig:
    """Return the default constants, but tokens are on their way for no time here; without windows
    deadlines alone decide.
    """
    if point.window == "off":
        return PolicyConfig(class_window_ms=3_600_000, tenant_window_tokens=2**30, delivery_ms=0)
    return PolicyConfig(charge=point.charge, delivery_ms=0)


def classes_of(load: Load) -> ClassesConfig:
    """Return the default classes with the promises of a load."""
    classes = ClassesConfig()
    if load.spared_deadline_ns:
        last = ClassConfig(weight=classes.standard.weight, sheddable=False)
        classes = replace(classes, **{LAST.label: last})
    if load.has_favourite:
        classes = replace(classes, **{LAST.label: ClassConfig(strict_first=True)})
    for each in TrafficClass:
        if each in load.workload.promises:
            told = promising(classes.of(each), load.workload.promises[each])
            classes = replace(classes, **{each.label: told})
    return classes


def kept_figures(outcome: Outcome) -> Figures:
    """Return the figures that studies and their readers look at."""
    history, times = outcome.history, outcome.times
    chosen = metrics.after_warm_up(history, WARM_UP)
    found = promise_figures(history, times, chosen) | engine_figures(history)
    found |= {"cpu_s": outcome.cpu_s, "shed_sample": shed_sample(history, chosen)}
    return found


def promise_figures(history: History, times: metrics.RequestTimes, chosen: metrics.Mask) -> Figures:
    """Return how requests, classes and tenants fared."""
    overall = metrics.summary(history, times, chosen)
    classes = metrics.by_class(history, times, chosen)
    tenants = metrics.by_tenant(history, times, chosen)
    protected = prices.protected(history, times, chosen)
    few = tenants if len(tenants) <= MAX_TENANTS_KEPT else {}
    return {
        "strict_miss_share": max(each.miss_share for each in classes.values()),
        "ttft_miss_share": max(each.ttft_miss_share for each in classes.values()),
        "late_gap_share": overall.late_gap_share,
        "goodput_rps": overall.goodput_rps,
        "goodput_tokens_per_s": overall.goodput_tokens_per_s,
        "refused": overall.num_refused,
        "kept_requests": int(np.count_nonzero(times.kept)),
        "protected": [protected.num_requests, protected.num_missed],
        "quartiles": metrics.by_prompt_quartile(history, times, chosen),
        "worst_tenant_miss_share": max(each.miss_share for each in tenants.values()),
        "classes": {name: short(each) for name, each in classes.items()},
        "tenants": {name: short(each) for name, each in few.items()},
    }


def engine_figures(history: History) -> Figures:
    """Return what the engine did for it."""
    fairness = metrics.fairness(history)
    prompt_tokens = int(history.workload.prompt_tokens.sum())
    return {
        "steps": len(history.step_end_ns),
        "simulated_s": history.duration_s,
        "arrivals_s": float(history.workload.arrival_ns[-1] - START_NS) / NS_PER_S,
        "busy_s": float((history.step_end_ns - history.step_begin_ns).sum()) / 1e9,
        "is_stable": float(metrics.is_stable(history, WARM_UP)),
        "jain_index": fairness.jain_index,
        "max_difference_tokens": fairness.max_difference_tokens,
        "compared_windows": fairness.num_windows,
        "cached_share": history.cached_tokens / prompt_tokens,
        "recomputed_share": history.recomputed_tokens / max(1, history.computed_tokens),
        "preemptions": history.num_preemptions,
        "kv_use": busy_kv_use(history),
        "computed_by_class": computed_by_class(history),
        "leftovers": {reason.name.lower(): n for reason, n in history.leftovers.items()},
    }


def short(summary: metrics.Summary) -> dict[str, float]:
    """Return the few figures of a class or tenant that studies ask for."""
    return {
        "miss_share": summary.miss_share,
        "refused": summary.num_refused,
        "goodput_tokens_per_s": summary.goodput_tokens_per_s,
        "ttft_p99_s": summary.ttft_s.get("p99", 0.0),
        "itl_p99_s": summary.itl_s.get("p99", 0.0),
    }


def busy_kv_use(history: History) -> float:
    """Return the mean share of KV blocks in use while requests wait, after the warm-up."""
    samples = history.samples
    use, waiting = np.array(samples.kv_use), np.array(samples.num_waiting)
    after = np.arange(len(use)) >= WARM_UP * len(use)
    busy = use[after & (waiting > 0)]
    return float(busy.mean()) if len(busy) else 0.0


def computed_by_class(history: History) -> dict[str, int]:
    """Return the tokens computed for each class until the last arrival."""
    workload = history.workload
    in_time = history.step_end_ns[history.share_step] <= workload.arrival_ns[-1]
    owners = workload.traffic_class[history.share_request[in_time]]
    totals = np.bincount(owners, history.share_tokens[in_time], minlength=len(TrafficClass))
    return {each.label: int(totals[each]) for each in TrafficClass}


def shed_sample(history: History, chosen: metrics.Mask) -> list[int]:
    """Return the index of some requests that were refused because they were predicted late."""
    predicted = history.reason == RejectionReason.SHED_PREDICTED
    shed = np.flatnonzero(chosen & predicted)
    places = np.linspace(0, len(shed) - 1, min(len(shed), SAMPLED_SHEDS)).astype(int)
    sample: list[int] = shed[places].tolist()
    return sample


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)
