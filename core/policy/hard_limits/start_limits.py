"""What runs where, and which flows may start nothing more there.

Owns: counts of running requests and of the blocks they may come to hold, by tenant and by class;
the reason that keeps each of them from starting more on each replica, worked out when a count
changes. Never knows: who waits, budgets.

KV shares are kept at the start: a running request counts with prompt + max_tokens. So no growth
ever breaks a share, and who asks for more than it needs uses up the share of its own tenant.
Sequences that a class has reserved are lent only to classes that can be preempted for it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from core.arrival_limits import blocks_of
from core.policy.base import Blocked
from core.policy.limits import Limits
from core.request import Request
from core.tenancy.classes import NUM_CLASSES, ClassConfig, TrafficClass
from core.tenancy.tenants import TenantConfig

Reasons = npt.NDArray[np.int8]  # values of `Blocked`
NO_LIMIT = 1 << 40  # blocks
NOTHING = Blocked.NOTHING  # enum members are slow to look up
_NONE_LACKS = [False] * NUM_CLASSES


@dataclass(slots=True)
class Running:
    """What a tenant or a class has on one replica."""

    num_requests: int = 0
    num_blocks: int = 0  # that those may come to hold

    def count(self, sign: int, num_blocks: int) -> None:
        """Add (1) or take away (-1) a request."""
        self.num_requests += sign
        self.num_blocks += sign * num_blocks


@dataclass(slots=True)
class OnReplica:
    """All that runs on one replica, and what keeps each tenant and class from more."""

    num_blocks: int  # of the pool
    tenants: list[Running] = field(default_factory=list)  # by index
    classes: list[Running] = field(default_factory=lambda: [Running() for _ in TrafficClass])
    quotas: list[int] = field(default_factory=list)  # blocks of each tenant at the most
    shares: list[int] = field(default_factory=list)  # of each class
    tenant_reasons: list[Blocked] = field(default_factory=list)
    class_reasons: list[Blocked] = field(default_factory=lambda: [NOTHING] * NUM_CLASSES)
    has_changed: bool = True  # in what its classes have, since their reasons were worked out
    reasons: Reasons | None = None  # of both, int8[tenants, classes], until one of them changes


class Holding(NamedTuple):
    """Where a request runs, and what it may come to hold there."""

    replica: int
    num_blocks: int


class StartLimits:
    """The limits of tenants, by index, and of classes on all replicas."""

    def __init__(self, limits: Limits, block_size: int, max_num_seqs: int) -> None:
        """Start with no tenant and nothing running."""
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._holdings: dict[Request, Holding] = {}
        self._replicas: dict[int, OnReplica] = {}
        self._num_running: list[int] = []  # by tenant, on all replicas
        self.configure(limits, [])

    def configure(self, limits: Limits, names: list[str]) -> None:
        """Go by these limits; `names` are the tenants by index, a growing list."""
        self._tenants: list[TenantConfig] = [limits.tenant(name) for name in names]
        self._classes: list[ClassConfig] = [limits.of(each) for each in TrafficClass]
        self._reserved = [config.reserved_seqs for config in self._classes]
        self._reserving = [
            (each, self._reserved[each]) for each in TrafficClass if self._reserved[each]
        ]
        self._num_reserved = sum(self._reserved)
        self._is_fixed = [not config.preemptible for config in self._classes]
        self._is_paused = [name in limits.paused for name in names]
        self._is_class_paused = [each.label in limits.paused_classes for each in TrafficClass]
        self._num_running += [0] * (len(names) - len(self._num_running))
        for on in self._replicas.values():
            on.tenants += [Running() for _ in range(len(names) - len(on.tenants))]
        self._look_at_all()

    def know_pool(self, replica: int, num_blocks: int) -> None:
        """Take in the size of a replica's pool."""
        on = self._on(replica)
        if on.num_blocks != num_blocks:
            on.num_blocks = num_blocks
            self._look_at_all()

    def started(self, request: Request) -> None:
        """Take in that `request` has a row of `request.replica`."""
        held = Holding(request.replica, self._needed_blocks(request))
        self._holdings[request] = held
        self._count(request, held, 1)

    def stopped(self, request: Request) -> None:
        """Take in that `request` has lost its row."""
        self._count(request, self._holdings.pop(request), -1)

    def reasons(self, replica: int) -> Reasons:
        """Return what keeps each flow from starting, int8[tenants, classes]."""
        on = self._on(replica)
        classes = self._class_reasons(on)
        if on.reasons is None:
            tenants = np.array(on.tenant_reasons, np.int8)[:, None]
            on.reasons = np.where(tenants, tenants, np.array(classes, np.int8))
        return on.reasons

    def blocked(self, request: Request, replica: int) -> Blocked:
        """Return what keeps a waiting `request`, as a whole, from starting."""
        on = self._on(replica)
        tenant, traffic_class = request.tenant_index, request.traffic_class
        reason = on.tenant_reasons[tenant] or self._class_reasons(on)[traffic_class]
        if reason is not NOTHING:
            return reason
        needed = self._needed_blocks(request)
        if on.tenants[tenant].num_blocks + needed > on.quotas[tenant]:
            return Blocked.KV_QUOTA
        if on.classes[traffic_class].num_blocks + needed > on.shares[traffic_class]:
            return Blocked.CLASS_CAP
        return Blocked.NOTHING

    def blocked_everywhere(self, request: Request) -> Blocked:
        """Return what keeps `request` from starting on any known replica; NOTHING: one takes it."""
        reasons = [self.blocked(request, replica) for replica in self._replicas]
        return Blocked.NOTHING if Blocked.NOTHING in reasons or not reasons else reasons[0]

    def numbers(self, request: Request, blocked: Blocked) -> tuple[float, float]:
        """Return what `request` would make of the limit that keeps it back, and the limit; (0, 0)
        if that is none of these.
        """
        for replica, on in self._replicas.items():
            numbers = self._compared(request, on, blocked)
            if numbers is not None and self.blocked(request, replica) is blocked:
                return numbers
        return 0, 0

    def owed_rows(self, replica: int) -> dict[TrafficClass, int]:
        """Return how many rows each class may still claim of its reserve, if any."""
        running = self._on(replica).classes
        return {
            each: num_rows - running[each].num_requests
            for each, num_rows in self._reserving
            if num_rows > running[each].num_requests
        }

    def check_integrity(self) -> None:
        """Assert that the counts are those of the running requests."""
        held = list(self._holdings.items())
        for replica, on in self._replicas.items():
            here = [(r, h) for r, h in held if h.replica == replica]
            for counts, keys in (
                (on.tenants, [r.tenant_index for r, _ in here]),
                (on.classes, [int(r.traffic_class) for r, _ in here]),
            ):
                for index, running in enumerate(counts):
                    blocks = [
                        h.num_blocks for (_, h), k in zip(here, keys, strict=True) if k == index
                    ]
                    assert running == Running(len(blocks), sum(blocks)), (replica, index)
        for index, count in enumerate(self._num_running):
            assert count == sum(r.tenant_index == index for r, _ in held), index

    def _compared(
        self, request: Request, on: OnReplica, blocked: Blocked
    ) -> tuple[float, float] | None:
        tenant, traffic_class = request.tenant_index, request.traffic_class
        config, needed = self._classes[traffic_class], self._needed_blocks(request)
        has, mine = on.classes[traffic_class], on.tenants[tenant]
        if blocked is Blocked.CONCURRENCY:
            return self._num_running[tenant], self._tenants[tenant].max_concurrency
        if blocked is Blocked.KV_QUOTA:
            return mine.num_blocks + needed, on.quotas[tenant]
        if blocked is Blocked.CLASS_CAP and 0 < config.max_seqs <= has.num_requests:
            return has.num_requests, config.max_seqs
        if blocked is Blocked.CLASS_CAP:
            return has.num_blocks + needed, on.shares[traffic_class]
        if blocked is Blocked.RESERVE:
            num_fixed, kept_free = self._fixed_rows([each.num_requests for each in on.classes])
            return num_fixed, self._max_num_seqs - kept_free[traffic_class]
        return None

    def _on(self, replica: int) -> OnReplica:
        on = self._replicas.get(replica)
        if on is None:
            on = OnReplica(0, [Running() for _ in self._tenants])
            self._replicas[replica] = on
            self._look_at_all()
        return on

    def _count(self, request: Request, held: Holding, sign: int) -> None:
        on, tenant = self._on(held.replica), request.tenant_index
        on.tenants[tenant].count(sign, held.num_blocks)
        on.classes[request.traffic_class].count(sign, held.num_blocks)
        self._num_running[tenant] += sign
        for each in self._replicas:
            self._look_at_tenant(each, tenant)
        on.has_changed = True

    def _look_at_all(self) -> None:
        for replica, on in self._replicas.items():
            on.quotas = [_share(each.kv_quota_fraction, on.num_blocks) for each in self._tenants]
            on.shares = [_share(each.max_kv_fraction, on.num_blocks) for each in self._classes]
            on.tenant_reasons, on.reasons = [NOTHING] * len(self._tenants), None
            for tenant in range(len(self._tenants)):
                self._look_at_tenant(replica, tenant)
            on.has_changed = True

    def _look_at_tenant(self, replica: int, tenant: int) -> None:
        """Work out what keeps a tenant from starting more; the first reason is told."""
        on, config = self._replicas[replica], self._tenants[tenant]
        reason = NOTHING
        if self._is_paused[tenant]:
            reason = Blocked.PAUSED
        elif config.replicas and replica not in config.replicas:
            reason = Blocked.INCOMPATIBLE
        elif 0 < config.max_concurrency <= self._num_running[tenant]:
            reason = Blocked.CONCURRENCY
        elif 0 < on.quotas[tenant] <= on.tenants[tenant].num_blocks:
            reason = Blocked.KV_QUOTA
        if on.tenant_reasons[tenant] is not reason:
            on.tenant_reasons[tenant], on.reasons = reason, None

    def _class_reasons(self, on: OnReplica) -> list[Blocked]:
        """Return what keeps each class from starting more: its caps, and what others reserve."""
        if on.has_changed:
            on.has_changed = False
            self._look_at_classes(on)
        return on.class_reasons

    def _look_at_classes(self, on: OnReplica) -> None:
        lacks_rows = self._lacks_rows([has.num_requests for has in on.classes])
        for index, (config, has) in enumerate(zip(self._classes, on.classes, strict=True)):
            reason = NOTHING
            if self._is_class_paused[index]:
                reason = Blocked.PAUSED
            elif 0 < on.shares[index] <= has.num_blocks or 0 < config.max_seqs <= has.num_requests:
                reason = Blocked.CLASS_CAP
            elif lacks_rows[index]:
                reason = Blocked.RESERVE
            if on.class_reasons[index] is not reason:
                on.class_reasons[index], on.reasons = reason, None

    def _lacks_rows(self, running: list[int]) -> list[bool]:
        """Tell which classes find all rows taken or reserved for others; `running` is by class."""
        num_fixed = sum([n for n, fixed in zip(running, self._is_fixed, strict=True) if fixed])
        num_left = self._max_num_seqs - num_fixed
        if not 0 < num_left <= self._num_reserved:
            return _NONE_LACKS
        kept_free = self._fixed_rows(running)[1]
        pairs = zip(self._is_fixed, kept_free, strict=True)
        return [is_fixed and num_left <= kept for is_fixed, kept in pairs]

    def _fixed_rows(self, running: list[int]) -> tuple[int, list[int]]:
        """Return in how many rows what runs cannot be preempted, and how many must stay free of
        that for others than each class; `running` is by class.
        """
        short = [max(0, reserved - n) for reserved, n in zip(self._reserved, running, strict=True)]
        num_short = sum(short)
        num_fixed = sum(n for n, fixed in zip(running, self._is_fixed, strict=True) if fixed)
        return num_fixed, [min(num_short - own, self._max_num_seqs - 1) for own in short]

    def _needed_blocks(self, request: Request) -> int:
        return -(-request.max_length // self._block_size)


def _share(fraction: float, num_blocks: int) -> int:
    """Return the blocks of a share; a whole pool is none: more may be asked for than is used."""
    return blocks_of(fraction, num_blocks) if fraction < 1 else NO_LIMIT
