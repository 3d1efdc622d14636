"""An engine under policy headrace whose every step is written down, for properties of fairness.

Owns: a policy that notes who was charged what and who could have used more, and the reading of such
notes: how far two children came apart while both could always have used more. Never knows: which
histories are run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from core.engine_core import policy_settings
from core.policy.base import Blocked, DecodeBatch, Step
from core.policy.cost_model import CostModel
from core.policy.fairness.shares import Shares
from core.policy.headrace import HeadracePolicy
from core.policy.limits import Limits
from core.policy.queues.flows import Flows
from core.policy.settings import PolicySettings
from core.policy.turns.contenders import Contenders
from core.scheduler.settings import EngineSettings
from core.simulation.engine import SimulatedEngine
from core.tenancy.classes import NUM_CLASSES, ClassConfig, ClassesConfig, TrafficClass
from core.tenancy.tenants import TenantConfig

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
STOPPED = frozenset({
    Blocked.MEMORY, Blocked.CLAIM, Blocked.HEADROOM, Blocked.SEQUENCES, Blocked.DRAINING,
    Blocked.RESERVE, Blocked.CLASS_CAP, Blocked.PARTIAL_PREFILLS, Blocked.ELSEWHERE,
})  # fmt: skip


@dataclass(frozen=True)
class StepNote:
    """One step, by flow; units are those of the policy."""

    charged: Ints  # so far
    decodes: Ints  # charges of this step's decodes
    is_ahead: Mask  # outside the window of its class when it began
    class_is_ahead: Mask  # the same for classes among each other
    is_serviceable: Mask  # had something that could be served, all through the step
    has_grant: Mask


class WatchedPolicy(HeadracePolicy):
    """Notes every step."""

    def __init__(self, settings: PolicySettings, model: CostModel | None = None) -> None:
        super().__init__(settings, model)
        self.notes: list[StepNote] = []

    @property
    def shares(self) -> Shares:
        return self._shares

    @property
    def flows(self) -> Flows:
        return self._flows

    def fill(self, step: Step) -> None:
        wanting = self._flows.num_waiting > 0
        for request in step.prefills():
            wanting[request.flow] = True
        decodes = self._decode_charges(step)
        before = self._shares.charged.copy()
        super().fill(step)
        contenders = self._leftovers.last
        assert contenders is not None
        for flow in np.flatnonzero(wanting).tolist():
            wanting[flow] &= contenders.reason(flow) not in STOPPED
        charged = self._shares.charged.copy()
        has_grant = charged - before > decodes
        note = StepNote(charged, decodes, self._is_ahead, self._class_is_ahead, wanting, has_grant)
        self.notes.append(note)

    def _contenders(self, step: Step, decodes: DecodeBatch) -> Contenders:
        """Look at the windows when it is known who could use more, before anything is granted."""
        contenders = super()._contenders(step, decodes)
        self._is_ahead: Mask = ~self._shares.tenants_within().reshape(-1)
        self._class_is_ahead: Mask = np.array(
            [not self._shares.is_class_within(c) for c in TrafficClass]
        )
        return contenders

    def _decode_charges(self, step: Step) -> Ints:
        batch = step.decodes()
        flows = batch.tenant_index * NUM_CLASSES + batch.traffic_class
        units = self._shares.book.prices.decodes(batch.context_tokens)
        return np.bincount(flows, units, len(self._flows)).astype(np.int64)


@dataclass(frozen=True)
class Level:
    """Siblings over the steps of a run: arrays [steps, children]."""

    charged: Ints  # so far, after the step
    decodes: Ints
    is_ahead: Mask
    is_serviceable: Mask


def tenants_of_class(notes: Sequence[StepNote], traffic_class: int) -> Level:
    """Return the tenants of a class as siblings."""
    count = len(notes[-1].charged)

    def column(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.pad(array, (0, count - len(array)))[traffic_class::NUM_CLASSES]

    return Level(
        np.stack([column(note.charged) for note in notes]),
        np.stack([column(note.decodes) for note in notes]),
        np.stack([column(note.is_ahead) for note in notes]),
        np.stack([column(note.is_serviceable) for note in notes]),
    )


def classes(notes: Sequence[StepNote]) -> Level:
    """Return the classes as siblings."""

    def by_class(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array.reshape(-1, NUM_CLASSES)

    return Level(
        np.stack([by_class(note.charged).sum(axis=0) for note in notes]),
        np.stack([by_class(note.decodes).sum(axis=0) for note in notes]),
        np.stack([note.class_is_ahead for note in notes]),
        np.stack([by_class(note.is_serviceable).any(axis=0) for note in notes]),
    )


@dataclass(frozen=True)
class Widest:
    """How far two siblings came apart at the worst, and how far they may, in charge by weight."""

    width: float
    bound: float

    @property
    def share(self) -> float:
        return self.width / self.bound


def widest(
    level: Level, f: int, g: int, weights: Sequence[float], theta: int, grant: int
) -> Widest:
    """Return the worst of all times in which `f` and `g` could always have used more, each from
    when both have paid the debts that they brought along.

    `theta` is the window, for the heaviest of `weights`; `grant` the largest charge of a grant.
    """
    cost = [max(weights) / weight for weight in weights]
    worst = Widest(0.0, 1.0)
    is_even = ~level.is_ahead[:, f] & ~level.is_ahead[:, g]
    for begin, end in _spells(level.is_serviceable[:, f] & level.is_serviceable[:, g]):
        even = np.flatnonzero(is_even[begin:end]) + begin
        if not even.any():
            continue
        start = int(even[even > 0][0])
        part, past = slice(start, end), slice(start - 1, end)
        lead = level.charged[past, f] * cost[f] - level.charged[past, g] * cost[g]
        slack = sum(cost[child] * overshoot(level, part, child, grant) for child in (f, g))
        found = Widest(float(lead.max() - lead.min()), 2 * theta + slack)
        worst = max(worst, found, key=lambda each: each.share)
    return worst


def overshoot(level: Level, part: slice, child: int, grant: int) -> int:
    """Return what a child may be charged beyond its window: the last grant or round of decodes that
    began inside, and then the most that decodes were charged in one go while it was ahead.
    """
    most = run = 0
    for units, is_ahead in zip(
        level.decodes[part, child], level.is_ahead[part, child], strict=True
    ):
        run = run + int(units) if is_ahead else 0
        most = max(most, run)
    return most + max(grant, int(level.decodes[part, child].max()))


def _spells(mask: Mask) -> list[tuple[int, int]]:
    """Return (start, end) of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def plain_classes(*weights: float, preemptible: bool = False, ttft_ms: int = 0) -> ClassesConfig:
    """Return classes of these weights without reserves and caps."""
    made = [
        ClassConfig(weight=weight, preemptible=preemptible, ttft_ms=ttft_ms) for weight in weights
    ]
    return ClassesConfig(**{c.label: made[c] for c in TrafficClass})


def limits_of(config: ClassesConfig, tenants: Mapping[str, float]) -> Limits:
    """Return limits with these classes, and tenants of these weights."""
    made = {name: TenantConfig(name=name, weight=weight) for name, weight in tenants.items()}
    return Limits(classes=config, tenants=made)


def watched_engine(
    settings: EngineSettings, num_blocks: int, model: CostModel | None = None
) -> tuple[SimulatedEngine, WatchedPolicy]:
    """Return a started engine and its policy."""
    policy = WatchedPolicy(policy_settings(settings), model)
    engine = SimulatedEngine(settings, num_blocks=num_blocks, policy=policy)
    engine.start()
    return engine, policy
