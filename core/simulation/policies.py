"""The policies that a simulation can compare, by name.

Owns: the names, what each needs beyond the configuration, and its usual token budget. Never knows:
how a policy decides. A name may end in the token budget of a step: `edf-256`. The cost model that a
policy is handed is the machine itself, without its noise: a calibrated model makes no other error.
One that learns does so from what the replicas bring along, if they do (`SimulationSettings.basis`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from core.engine_core import policy_settings
from core.errors import ConfigError
from core.policy.base import Policy
from core.policy.baselines.dlpm import DlpmPolicy
from core.policy.baselines.edf import EdfPolicy, StrictGapEdfPolicy
from core.policy.baselines.qoserve import QoServePolicy
from core.policy.baselines.srpf import SrpfPolicy
from core.policy.baselines.urgency_density import UrgencyDensityPolicy
from core.policy.baselines.vtc import VtcPolicy
from core.policy.cost_model import CostModel
from core.policy.headrace import HeadracePolicy
from core.policy.plain.fcfs import FcfsPolicy
from core.policy.plain.priority import PriorityPolicy
from core.policy.plain.static import StaticPolicy
from core.policy.settings import PolicySettings
from core.simulation.run import SimulationSettings

Make = Callable[[PolicySettings, CostModel, float], Policy]
CHUNK = 256  # tokens
MANY = 64  # prompts partly computed


@dataclass(frozen=True, slots=True)
class Baseline:
    """A policy that can be simulated."""

    summary: str
    make: Make  # from settings, cost model, and the margin to keep for its errors
    max_num_batched_tokens: int = 0  # 0 = as configured
    max_num_partial_prefills: int = 0  # 0 = as configured


def plain(summary: str, kind: Callable[[PolicySettings], Policy]) -> Baseline:
    """Return a policy that runs with the configured budget."""
    return Baseline(summary, lambda settings, _model, _margin: kind(settings))


def chunked(summary: str, kind: Callable[[PolicySettings], Policy]) -> Baseline:
    """Return a policy with a fixed budget that may leave many prompts under way."""
    return replace(
        plain(summary, kind), max_num_batched_tokens=CHUNK, max_num_partial_prefills=MANY
    )


BASELINES: dict[str, Baseline] = {
    "headrace": Baseline(
        "earliest deadline first inside a fairness window, promised gaps, shedding",
        lambda settings, model, _margin: HeadracePolicy(settings, model),
        max_num_partial_prefills=MANY,
    ),
    "static": plain("a batch ends before the next begins", StaticPolicy),
    "fcfs": plain("first come, first served, short prompts beside long ones", FcfsPolicy),
    "sarathi": Baseline(
        "first come, first served, one prompt after the other",
        lambda settings, _model, _margin: FcfsPolicy(settings),
        max_num_batched_tokens=CHUNK,
        max_num_partial_prefills=1,
    ),
    "priority": plain("class, then arrival", PriorityPolicy),
    "edf": chunked("earliest deadline first", EdfPolicy),
    "srpf": chunked("shortest remaining prompt first", SrpfPolicy),
    "vtc": chunked("the tenant that was served least", VtcPolicy),
    "dlpm": chunked("longest cached prefix of a tenant with a deficit", DlpmPolicy),
    "urgency-density": Baseline(
        "latest start first, or the shortest when time is short",
        lambda settings, model, _margin: UrgencyDensityPolicy(settings, model),
        max_num_batched_tokens=CHUNK,
        max_num_partial_prefills=MANY,
    ),
    "qoserve": Baseline(
        "slack-driven chunks, hybrid order, relegation",
        lambda settings, model, _margin: QoServePolicy(settings, model),
        max_num_batched_tokens=2560,
        max_num_partial_prefills=MANY,
    ),
    "gap-edf": Baseline(
        "earliest deadline first, no step longer than the promised gap, shedding",
        lambda settings, model, margin: StrictGapEdfPolicy(settings, model, margin=margin),
        max_num_batched_tokens=4096,
        max_num_partial_prefills=MANY,
    ),
}


def find_policy(name: str) -> tuple[Baseline, int]:
    """Return the policy of that name and the token budget in it (0 = none); raises ConfigError."""
    matched = re.fullmatch(r"(.+?)(?:-([1-9]\d*))?", name)
    baseline = BASELINES.get(matched[1]) if matched else None
    if matched is None or baseline is None:
        raise ConfigError(f"policy {name!r} is unknown: use one of {', '.join(BASELINES)}")
    return baseline, int(matched[2] or 0)


def prepare(
    name: str, simulation: SimulationSettings, margin: float = 0.0
) -> tuple[SimulationSettings, Policy]:
    """Return the settings and a new policy for `name`; raises ConfigError for an unknown one."""
    baseline, budget = find_policy(name)
    engine = simulation.engine
    if simulation.as_configured:
        baseline = replace(baseline, max_num_batched_tokens=0, max_num_partial_prefills=0)
    budget = budget or baseline.max_num_batched_tokens or engine.max_num_batched_tokens
    engine = replace(
        engine,
        max_num_batched_tokens=budget,
        max_num_seqs=min(engine.max_num_seqs, budget),
        max_num_partial_prefills=baseline.max_num_partial_prefills
        or engine.max_num_partial_prefills,
    )
    policy = baseline.make(policy_settings(engine), simulation.hardware, margin)
    return replace(simulation, engine=engine), policy
