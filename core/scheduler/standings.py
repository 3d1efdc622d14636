"""Who has what, and who should have: classes and tenants in frozen numbers, for page and commands.

Owns: shares due by weight, shares used of the last seconds, quotas and reserves in blocks. Never
knows: how shares are kept (the policy's), who looks. Taken when a page is published, not in a step.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.policy.base import Standing
from core.scheduler.scheduler import Scheduler
from core.tenancy import CLASS_NAMES, NUM_CLASSES, TrafficClass

WINDOW_NS = 10 * NS_PER_S
SAMPLE_NS = NS_PER_S
NO_BUDGET = -1  # as in `ipc.pages`, which this room does not know

Flows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClassStanding:
    """One class."""

    num_waiting: int
    num_running: int
    held_blocks: int
    paused: bool
    weight: float
    reserved_blocks: int
    reserved_seqs: int
    reserved_step_tokens: int
    service: int
    virtual_lead: float


@dataclass(frozen=True, slots=True)
class TenantStanding:
    """One tenant."""

    paused: bool
    weight: float
    share_due: float
    share_used: float
    service: int
    virtual_lead: float
    budget_tokens: int  # NO_BUDGET = it has none
    budget_tat_ns: int  # when that is full again (`core.token_rate`); 0 = it has none
    kv_quota_blocks: int


class Standings:
    """Takes the numbers of a scheduler, and remembers the charges of the last seconds."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Start without a past."""
        self._scheduler = scheduler
        self._samples: deque[tuple[int, Flows]] = deque()

    def take(self, now_ns: int) -> tuple[list[ClassStanding], list[TenantStanding]]:
        """Return classes by value and tenants by their index in the counters."""
        count = len(self._scheduler.metering.tenant_names) * NUM_CLASSES
        standing = self._scheduler.policy.standing(now_ns)
        charged, leads = _padded(standing, count)
        used = self._used(charged, now_ns)
        return self._classes(standing, charged), self._tenants(standing, charged, leads, used)

    def _classes(self, standing: Standing | None, charged: Flows) -> list[ClassStanding]:
        scheduler, limits = self._scheduler, self._scheduler.limits
        waiting = scheduler.waiting.num_waiting_by_flow.reshape(-1, NUM_CLASSES).sum(axis=0)
        running = _running_by_flow(scheduler).reshape(-1, NUM_CLASSES).sum(axis=0)
        held = _held_by_flow(scheduler).reshape(-1, NUM_CLASSES).sum(axis=0)
        service = charged.reshape(-1, NUM_CLASSES).sum(axis=0)
        leads = np.zeros(NUM_CLASSES) if standing is None else standing.class_leads
        num_blocks, num_replicas = _num_blocks(scheduler), len(scheduler.replicas)
        step_tokens = scheduler.settings.max_num_batched_tokens
        return [
            ClassStanding(
                num_waiting=int(waiting[c]),
                num_running=int(running[c]),
                held_blocks=int(held[c]),
                paused=CLASS_NAMES[c] in limits.paused_classes,
                weight=limits.of(c).weight,
                reserved_blocks=int(limits.of(c).reserved_kv_fraction * num_blocks),
                reserved_seqs=limits.of(c).reserved_seqs * num_replicas,
                reserved_step_tokens=int(limits.of(c).reserved_step_fraction * step_tokens),
                service=int(service[c]),
                virtual_lead=float(leads[c]),
            )
            for c in TrafficClass
        ]

    def _tenants(
        self, standing: Standing | None, charged: Flows, leads: Flows, used: npt.NDArray[np.float64]
    ) -> list[TenantStanding]:
        scheduler, limits = self._scheduler, self._scheduler.limits
        budgets = {} if standing is None else standing.budget_tokens
        tats_ns = {} if standing is None else standing.budget_tats_ns
        due = self._due()
        service = charged.reshape(-1, NUM_CLASSES).sum(axis=1)
        lead = leads.reshape(-1, NUM_CLASSES).max(axis=1, initial=0)
        num_blocks = _num_blocks(scheduler)
        return [
            TenantStanding(
                paused=name in limits.paused,
                weight=limits.tenant(name).weight,
                share_due=float(due[index]),
                share_used=float(used[index]),
                service=int(service[index]),
                virtual_lead=float(lead[index]),
                budget_tokens=budgets.get(name, NO_BUDGET),
                budget_tat_ns=tats_ns.get(name, 0),
                kv_quota_blocks=int(limits.tenant(name).kv_quota_fraction * num_blocks),
            )
            for index, name in enumerate(scheduler.metering.tenant_names)
        ]

    def _due(self) -> npt.NDArray[np.float64]:
        """Return each tenant's share by weight, of its classes and in them, where it has work."""
        scheduler, limits = self._scheduler, self._scheduler.limits
        names = scheduler.metering.tenant_names
        count = len(names) * NUM_CLASSES
        waiting = scheduler.waiting.num_waiting_by_flow[:count]
        has_work = (waiting + _running_by_flow(scheduler) > 0).reshape(-1, NUM_CLASSES)
        weights = has_work * np.array([[limits.tenant(name).weight] for name in names])
        class_weights = has_work.any(axis=0) * np.array([limits.of(c).weight for c in TrafficClass])
        in_class = weights / np.maximum(weights.sum(axis=0), 1e-9)
        shares: npt.NDArray[np.float64] = in_class @ class_weights
        return shares / max(float(class_weights.sum()), 1e-9)

    def _used(self, charged: Flows, now_ns: int) -> npt.NDArray[np.float64]:
        """Return each tenant's share of what was charged since the oldest sample."""
        samples = self._samples
        if not samples or now_ns - samples[-1][0] >= SAMPLE_NS:
            samples.append((now_ns, charged.copy()))
        while now_ns - samples[0][0] > WINDOW_NS and len(samples) > 1:
            samples.popleft()
        past = samples[0][1]
        recent = charged.copy()
        recent[: len(past)] -= past
        by_tenant = recent.reshape(-1, NUM_CLASSES).sum(axis=1)
        shares: npt.NDArray[np.float64] = by_tenant / max(1, int(by_tenant.sum()))
        return shares


def _padded(standing: Standing | None, count: int) -> tuple[Flows, Flows]:
    """Return charges and leads with an entry for each of `count` flows."""
    charged, leads = np.zeros(count, np.int64), np.zeros(count, np.int64)
    if standing is not None:
        charged[: len(standing.charged)] = standing.charged[:count]
        leads[: len(standing.leads)] = standing.leads[:count]
    return charged, leads


def _running_by_flow(scheduler: Scheduler) -> Flows:
    counts = np.zeros(len(scheduler.metering.tenant_names) * NUM_CLASSES, np.int64)
    for replica in scheduler.replicas:
        table = replica.table
        flows = table.tenant_index * NUM_CLASSES + table.traffic_class
        counts += np.bincount(flows[table.active], minlength=len(counts))
    return counts


def _held_by_flow(scheduler: Scheduler) -> Flows:
    counts = np.zeros(len(scheduler.metering.tenant_names) * NUM_CLASSES, np.int64)
    for replica in scheduler.replicas:
        for flow, count in replica.kv.pool.held_by.items():
            if 0 <= flow < len(counts):
                counts[flow] += count
    return counts


def _num_blocks(scheduler: Scheduler) -> int:
    return sum(replica.num_blocks for replica in scheduler.replicas)
