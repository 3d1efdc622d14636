"""One workload under several policies: runs them and gathers what is worth comparing.

Owns: the figures of a run as one plain document. Never knows: where a workload or a configuration
comes from, how a document is shown.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from core.simulation import metrics, prices
from core.simulation.history import History
from core.simulation.policies import prepare
from core.simulation.run import Simulation, SimulationSettings
from core.simulation.workload import Workload

Progress = Callable[[str, int, int], None]
Stopwatch = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Case:
    """A policy by name and the settings it runs under; `label` tells cases apart."""

    label: str
    policy: str
    settings: SimulationSettings
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    label: str
    history: History
    times: metrics.RequestTimes
    cpu_s: float


def run_case(
    case: Case, workload: Workload, cpu_s: Stopwatch, progress: Progress | None = None
) -> Outcome:
    """Simulate one case; `cpu_s` reads the processor time of this process, seconds.

    Raises ConfigError for an unknown policy.
    """
    settings, policy = prepare(case.policy, case.settings, case.margin)
    return run_policy(case.label, Simulation(settings, workload, policy), cpu_s, progress)


def run_policy(
    label: str, simulation: Simulation, cpu_s: Stopwatch, progress: Progress | None = None
) -> Outcome:
    """Run a simulation that is prepared."""
    begin_s = cpu_s()
    history = simulation.run(progress and (lambda done, of: progress(label, done, of)))
    used_s = cpu_s() - begin_s
    return Outcome(label, history, metrics.request_times(history), used_s)


def figures(outcome: Outcome, warm_up: float) -> dict[str, Any]:
    """Return what a run came to, as plain data; requests of the warm-up share are left out."""
    history, times = outcome.history, outcome.times
    chosen = metrics.after_warm_up(history, warm_up)
    quartiles = metrics.by_prompt_quartile(history, times, chosen)
    return {
        "label": outcome.label,
        "simulated_s": history.duration_s,
        "all": asdict(metrics.summary(history, times, chosen)),
        "classes": _as_dicts(metrics.by_class(history, times, chosen)),
        "tenants": _as_dicts(metrics.by_tenant(history, times, chosen)),
        "kept_by_prompt_quartile": [None if math.isnan(q) else q for q in quartiles],
        "fairness": asdict(metrics.fairness(history)),
        "refusals": metrics.refusals(history),
        "protected": asdict(prices.protected(history, times, chosen)),
        "leftovers": {reason.name.lower(): n for reason, n in history.leftovers.items()},
        "prices": asdict(prices.prices(history)),
        "is_stable": metrics.is_stable(history, warm_up),
        "kv_use": _kv_use(history),
        "preemptions": history.num_preemptions,
        "recomputed_share": history.recomputed_tokens / max(1, history.computed_tokens),
        "cached_share": history.cached_tokens / int(history.workload.prompt_tokens.sum()),
        "speed": _speed(outcome),
    }


def _as_dicts(summaries: dict[str, metrics.Summary]) -> dict[str, dict[str, Any]]:
    return {name: asdict(each) for name, each in summaries.items()}


def _kv_use(history: History) -> dict[str, float]:
    use = np.array(history.samples.kv_use or [0.0])
    return {
        "mean": float(use.mean()),
        "p99": float(np.percentile(use, 99)),
        "max": float(use.max()),
    }


def _speed(outcome: Outcome) -> dict[str, float]:
    num_steps = len(outcome.history.step_end_ns)
    return {
        "steps": num_steps,
        "cpu_s": outcome.cpu_s,
        "us_per_step": outcome.cpu_s / max(1, num_steps) * 1e6,
        "times_real_time": outcome.history.duration_s / max(outcome.cpu_s, 1e-9),
    }
