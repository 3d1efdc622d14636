"""All classes and tenants together: one version of everything that is promised.

Owns: the checks over all of them. All of it can be changed at run time (`changes`). Never knows:
how a promise is kept (`core.policy`).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from core.settings.checks import in_range
from core.tenancy.classes import ClassesConfig, TrafficClass
from core.tenancy.tenants import TenantConfig

MAX_TENANTS = 4096


@dataclass(frozen=True, slots=True)
class Room:
    """What an engine has to promise from."""

    num_replicas: int
    max_num_seqs: int  # of a replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """One version of everything that is promised, and who is paused."""

    classes: ClassesConfig = field(default_factory=ClassesConfig)
    tenants: tuple[TenantConfig, ...] = ()
    paused_tenants: frozenset[str] = frozenset()
    paused_classes: frozenset[str] = frozenset()

    def faults(self, room: Room, known: "Tenancy | None" = None) -> Iterator[str]:
        """Yield one line for each key or combination that cannot be accepted.

        Tenants that `known` has too, the same objects, were checked with it: among thousands a
        change of one is checked in no time.
        """
        yield from self.classes.faults()
        total = sum(self.classes.of(c).reserved_seqs for c in TrafficClass)
        if total > room.max_num_seqs:
            yield (
                f"classes: the reserves reserved_seqs add up to {total}, more than"
                f" engine.max_num_seqs = {room.max_num_seqs}"
            )
        yield from in_range("number of tenants", len(self.tenants), 0, MAX_TENANTS)
        checked = set(map(id, known.tenants)) if known is not None else set()
        for tenant in self.tenants:
            if id(tenant) in checked:
                continue
            yield from tenant.faults()
            yield from _replica_faults(tenant, room.num_replicas)
        yield from _duplicates(self.tenants)
        yield from self._useless_reserves()

    def _useless_reserves(self) -> Iterator[str]:
        """A reserve beyond the quotas of all who may use the class only keeps others out."""
        for traffic_class in TrafficClass:
            name, reserved = (
                traffic_class.label,
                self.classes.of(traffic_class).reserved_kv_fraction,
            )
            quotas = [t.kv_quota_fraction for t in self.tenants if name in t.classes]
            if quotas and sum(quotas) < reserved:
                yield (
                    f"classes.{name}.reserved_kv_fraction = {reserved} cannot be used:"
                    f" kv_quota_fraction of the tenants of the class add up to {sum(quotas):.3g}"
                )


def _replica_faults(tenant: TenantConfig, num_replicas: int) -> Iterator[str]:
    for replica in tenant.replicas:
        if replica >= num_replicas:
            yield (
                f"tenants[{tenant.name}].replicas = {replica} does not exist: the last one is"
                f" {num_replicas - 1} (engine.replicas = {num_replicas})"
            )


def _duplicates(tenants: tuple[TenantConfig, ...]) -> Iterator[str]:
    """Yield the names and keys that stand for more than one tenant."""
    names = Counter(tenant.name for tenant in tenants)
    yield from (f"tenants[{name}] is defined twice" for name in sorted(names) if names[name] > 1)
    owners: dict[str, str] = {}
    for tenant in tenants:
        for digest in tenant.key_sha256:
            owner = owners.setdefault(digest, tenant.name)
            if owner != tenant.name:
                yield f"tenants[{tenant.name}].key_sha256 is a key of tenants[{owner}] too"
