"""The policies that a simulation can compare, by name.

Owns: the names, what each needs beyond the configuration, and its usual token budget. Never knows:
how a policy decides. A name may end in the token budget of a step: `edf-256`. The cost model that a
policy is handed is the machine itself, without its noise: a calibrated model makes no other error.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from core.errors import ConfigError
from core.policy.base import Policy
from core.policy.cost_model import CostModel
from core.policy.edf import EdfPolicy, StrictGapEdfPolicy
from core.policy.fcfs import FcfsPolicy
from core.policy.ordered import PolicySettings
from core.policy.priority import PriorityPolicy
from core.policy.qoserve import QoServePolicy
from core.policy.srpf import SrpfPolicy
from core.policy.static import StaticPolicy
from core.simulation.run import SimulationSettings

Make = Callable[[PolicySettings, CostModel, float], Policy]
MANY_PARTIAL_PREFILLS = 64


@dataclass(frozen=True, slots=True)
class Baseline:
    """A policy that can be simulated."""

    summary: str
    make: Make  # from settings, cost model, and the margin to keep for its errors
    max_num_batched_tokens: int = 0  # 0 = as configured
    max_num_partial_prefills: int = 0  # 0 = as configured


BASELINES: dict[str, Baseline] = {
    "static": Baseline("a batch ends before the next begins", lambda s, _m, _e: StaticPolicy(s)),
    "fcfs": Baseline("first come, first served", lambda s, _m, _e: FcfsPolicy(s)),
    "sarathi": Baseline(
        "first come, first served, one prompt after the other",
        lambda s, _m, _e: FcfsPolicy(s), 256, 1,
    ),
    "priority": Baseline("class, then arrival", lambda s, _m, _e: PriorityPolicy(s)),
    "edf": Baseline(
        "earliest deadline first, a fixed chunk",
        lambda s, _m, _e: EdfPolicy(s), 256, MANY_PARTIAL_PREFILLS,
    ),
    "gap-edf": Baseline(
        "earliest deadline first, no step longer than the promised gap, shedding",
        lambda s, m, e: StrictGapEdfPolicy(s, m, margin=e), 4096, MANY_PARTIAL_PREFILLS,
    ),
    "srpf": Baseline(
        "shortest remaining prompt first, a fixed chunk",
        lambda s, _m, _e: SrpfPolicy(s), 256, MANY_PARTIAL_PREFILLS,
    ),
    "qoserve": Baseline(
        "slack-driven chunks, hybrid order, relegation",
        lambda s, m, _e: QoServePolicy(s, m), 2560, MANY_PARTIAL_PREFILLS,
    ),
}  # fmt: skip


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
    budget = budget or baseline.max_num_batched_tokens or engine.max_num_batched_tokens
    engine = replace(
        engine,
        max_num_batched_tokens=budget,
        max_num_seqs=min(engine.max_num_seqs, budget),
        max_num_partial_prefills=baseline.max_num_partial_prefills
        or engine.max_num_partial_prefills,
    )
    policy_settings = PolicySettings(
        max_num_partial_prefills=engine.max_num_partial_prefills,
        kv_headroom_fraction=engine.kv_headroom_fraction,
    )
    policy = baseline.make(policy_settings, simulation.hardware, margin)
    return replace(simulation, engine=engine), policy
