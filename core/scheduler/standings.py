"""Who has what, and who should have: classes and tenants in frozen numbers, for page and commands.

Owns: shares due by weight, shares used of the last seconds, quotas and reserves in blocks. Never
knows: how shares are kept (the policy's), who looks. Taken when a page is published, not in a step.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.policy.base import Standing
from core.policy.limits import Limits
from core.scheduler.replica import ReplicaState
from core.scheduler.scheduler import Scheduler
from core.tenancy.classes import CLASS_NAMES, NUM_CLASSES, TrafficClass
from core.tenancy.rows import OTHER

WINDOW_NS = 10 * NS_PER_S
SAMPLE_NS = NS_PER_S
NEVER = np.iinfo(np.int64).max
NO_BUDGET = -1  # as in `ipc.pages`, which this room does not know

Counts = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]


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
    oldest_arrival_ns: int  # of its requests that never started; 0 = none


@dataclass(frozen=True, slots=True)
class TenantStandings:
    """All tenants, by their index in the counters: columns, as there may be hundreds."""

    paused: npt.NDArray[np.bool_]
    removed: npt.NDArray[np.bool_]  # its name is kept, as long as the engine runs, for its counters
    weight: Shares
    share_due: Shares
    share_used: Shares
    service: Counts
    virtual_lead: Counts
    budget_tokens: Counts  # NO_BUDGET = it has none
    budget_tat_ns: Counts  # when that is full again (`core.token_rate`); 0 = it has none
    kv_quota_blocks: Counts
    held_blocks: Counts  # on all replicas
    oldest_arrival_ns: Counts  # of its requests that never started; 0 = none


@dataclass(frozen=True, slots=True)
class _Settings:
    """What the limits say of each tenant, worked out once for as long as they rule."""

    limits: Limits
    names: tuple[str, ...]
    version: int  # of the names
    paused: npt.NDArray[np.bool_]
    removed: npt.NDArray[np.bool_]
    weight: Shares
    kv_quota: Shares


_NO_SETTINGS = _Settings(
    Limits(), (), -1, np.zeros(0, bool), np.zeros(0, bool), np.zeros(0), np.zeros(0)
)


class Standings:
    """Takes the numbers of a scheduler, and remembers the charges of the last seconds."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Start without a past."""
        self._scheduler = scheduler
        self._samples: deque[tuple[int, Counts]] = deque()
        self._settings = _NO_SETTINGS

    def take(self, now_ns: int) -> tuple[list[ClassStanding], TenantStandings]:
        """Return classes by value, and tenants."""
        self._read_limits()
        count = len(self._scheduler.metering.tenant_names) * NUM_CLASSES
        standing = self._scheduler.policy.standing(now_ns)
        charged, leads = _padded(standing, count)
        running = _by_class(_running_by_flow(self._scheduler))
        held = _by_class(_held_by_flow(self._scheduler))
        waiting = _by_class(self._scheduler.waiting.num_waiting_by_flow[:count])
        oldest = _by_class(self._oldest_arrivals(count))
        classes = self._classes(standing, charged, (waiting, running, held), oldest)
        tenants = TenantStandings(
            paused=self._settings.paused,
            removed=self._settings.removed,
            weight=self._settings.weight,
            share_due=self._due(waiting + running > 0),
            share_used=self._used(charged, now_ns),
            service=_by_class(charged).sum(axis=1),
            virtual_lead=_by_class(leads).max(axis=1, initial=0),
            budget_tokens=self._budgets({} if standing is None else standing.budget_tokens),
            budget_tat_ns=self._budgets({} if standing is None else standing.budget_tats_ns, 0),
            kv_quota_blocks=(self._settings.kv_quota * _num_blocks(self._scheduler)).astype(int),
            held_blocks=held.sum(axis=1),
            oldest_arrival_ns=_first(oldest, axis=1),
        )
        return classes, tenants

    def _read_limits(self) -> None:
        limits, names = self._scheduler.limits, self._scheduler.metering.tenant_names
        known = self._settings
        version = self._scheduler.metering.tenant_rows.version
        if known.limits is limits and known.version == version:
            return
        if known.names != tuple(names[: len(known.names)]):
            self._samples.clear()  # of tenants whose rows are others' now
        listed, tenants = limits.tenants, [limits.tenant(name) for name in names]
        self._settings = _Settings(
            limits,
            tuple(names),
            version,
            paused=np.array([name in limits.paused for name in names]),
            removed=np.array([row != OTHER and n not in listed for row, n in enumerate(names)]),
            weight=np.array([tenant.weight for tenant in tenants]),
            kv_quota=np.array([tenant.kv_quota_fraction for tenant in tenants]),
        )

    def _oldest_arrivals(self, num_flows: int) -> Counts:
        """Return by flow when what has waited longest for its start arrived; NEVER of none."""
        oldest = np.full(num_flows, NEVER, np.int64)
        for flow, arrival_ns in self._scheduler.waiting.oldest_arrivals_ns():
            oldest[flow] = arrival_ns
        return oldest

    def _budgets(self, known: Mapping[str, int], without: int = NO_BUDGET) -> Counts:
        """Return an entry for each tenant, `without` for those that `known` has not."""
        column = np.full(len(self._settings.names), without, np.int64)
        if known:
            column[:] = [known.get(name, without) for name in self._settings.names]
        return column

    def _classes(
        self,
        standing: Standing | None,
        charged: Counts,
        tables: tuple[Counts, Counts, Counts],
        oldest: Counts,
    ) -> list[ClassStanding]:
        scheduler, limits = self._scheduler, self._scheduler.limits
        waiting, running, held = (table.sum(axis=0) for table in tables)
        service, arrivals_ns = _by_class(charged).sum(axis=0), _first(oldest, axis=0)
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
                virtual_lead=max(0.0, float(leads[c])),
                oldest_arrival_ns=int(arrivals_ns[c]),
            )
            for c in TrafficClass
        ]

    def _due(self, has_work: npt.NDArray[np.bool_]) -> Shares:
        """Return each tenant's share by weight, of its classes and in them, where it has work;
        `has_work` is bool[tenants, classes].
        """
        limits = self._scheduler.limits
        weights = has_work * self._settings.weight[:, None]
        class_weights = has_work.any(axis=0) * np.array([limits.of(c).weight for c in TrafficClass])
        in_class = weights / np.maximum(weights.sum(axis=0), 1e-9)
        shares: Shares = in_class @ class_weights / max(float(class_weights.sum()), 1e-9)
        return shares

    def _used(self, charged: Counts, now_ns: int) -> Shares:
        """Return each tenant's share of what was charged since the oldest sample."""
        samples = self._samples
        if not samples or now_ns - samples[-1][0] >= SAMPLE_NS:
            samples.append((now_ns, charged.copy()))
        while now_ns - samples[0][0] > WINDOW_NS and len(samples) > 1:
            samples.popleft()
        past = samples[0][1]
        recent = charged.copy()
        recent[: len(past)] -= past
        by_tenant = _by_class(recent).sum(axis=1)
        shares: Shares = by_tenant / max(1, int(by_tenant.sum()))
        return shares


def _padded(standing: Standing | None, count: int) -> tuple[Counts, Counts]:
    """Return charges and leads with an entry for each of `count` flows."""
    charged, leads = np.zeros(count, np.int64), np.zeros(count, np.int64)
    if standing is not None:
        charged[: len(standing.charged)] = standing.charged[:count]
        leads[: len(standing.leads)] = standing.leads[:count]
    return charged, leads


def _running_by_flow(scheduler: Scheduler) -> Counts:
    counts = np.zeros(len(scheduler.metering.tenant_names) * NUM_CLASSES, np.int64)
    for replica in scheduler.replicas:
        table = replica.table
        flows = table.tenant_index * NUM_CLASSES + table.traffic_class
        counts += np.bincount(flows[table.active], minlength=len(counts))
    return counts


def _held_by_flow(scheduler: Scheduler) -> Counts:
    counts = np.zeros(len(scheduler.metering.tenant_names) * NUM_CLASSES, np.int64)
    for replica in scheduler.replicas:
        if replica.state is not ReplicaState.UP:  # its pool died with the executor
            continue
        held = replica.kv.pool.held_by()[: len(counts)]
        counts[: len(held)] += held
    return counts


def _first(arrivals_ns: Counts, axis: int) -> Counts:
    """Return the earliest along `axis`; 0 where there is none."""
    first: Counts = arrivals_ns.min(axis=axis, initial=NEVER)
    return np.where(first == NEVER, 0, first)


def _by_class(flows: Counts) -> Counts:
    """Return an array over flows as [tenants, classes]."""
    return flows.reshape(-1, NUM_CLASSES)


def _num_blocks(scheduler: Scheduler) -> int:
    return sum(replica.num_blocks for replica in scheduler.replicas)
