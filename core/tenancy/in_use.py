"""What a changed promise would take away from those who use it now. Pure.

Owns: the comparison of reserves, caps and quotas with what is held. Never knows: where the numbers
come from. A cap below what is held would leave its holders over the cap until they end, and a
reserve that is smaller than what its class holds of it would be taken by others: both are refused,
with the two numbers. To lower them all the same, pause the class or tenant first and wait.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from core.tenancy.classes import CLASS_NAMES, ClassConfig
from core.tenancy.tenancy import Tenancy
from core.tenancy.tenants import TenantConfig


@dataclass(frozen=True, slots=True)
class Held:
    """What a class or tenant has at this moment, on all replicas."""

    num_running: int = 0
    num_blocks: int = 0


@dataclass(frozen=True, slots=True)
class InUse:
    """The engine as its scheduler showed it last."""

    num_blocks: int = 0  # of all replicas; 0 = none is up, nothing can be in use
    num_replicas: int = 1
    classes: Mapping[str, Held] = field(default_factory=dict)
    tenants: Mapping[str, Held] = field(default_factory=dict)


def broken_promises(before: Tenancy, after: Tenancy, in_use: InUse) -> Iterator[str]:
    """Yield one line for each promise in use that the change from `before` would break."""
    if not in_use.num_blocks:
        return
    for name in CLASS_NAMES:
        held = in_use.classes.get(name, Held())
        old_class, new_class = getattr(before.classes, name), getattr(after.classes, name)
        yield from _class_lines(f"classes.{name}", old_class, new_class, held, in_use)
    yield from _sum_of_reserves(before, after, in_use)
    known = {tenant.name: tenant for tenant in before.tenants}
    for tenant in after.tenants:
        held = in_use.tenants.get(tenant.name, Held())
        old = known.get(tenant.name, tenant)
        yield from _tenant_lines(f"tenants[{tenant.name}]", old, tenant, held, in_use)


def _class_lines(
    path: str, old: ClassConfig, new: ClassConfig, held: Held, in_use: InUse
) -> Iterator[str]:
    blocks, replicas = in_use.num_blocks, in_use.num_replicas
    if new.max_kv_fraction < min(old.max_kv_fraction, held.num_blocks / blocks):
        yield _holds(f"{path}.max_kv_fraction", new.max_kv_fraction * blocks, held.num_blocks)
    most_running = new.max_seqs * replicas
    if 0 < new.max_seqs < (old.max_seqs or 1 << 31) and most_running < held.num_running:
        yield _runs(f"{path}.max_seqs", most_running, held.num_running)
    used = min(old.reserved_kv_fraction * blocks, held.num_blocks)
    if new.reserved_kv_fraction * blocks < used:
        yield _holds(f"{path}.reserved_kv_fraction", new.reserved_kv_fraction * blocks, used)
    running = min(old.reserved_seqs * replicas, held.num_running)
    if new.reserved_seqs * replicas < running:
        yield _runs(f"{path}.reserved_seqs", new.reserved_seqs * replicas, running)


def _sum_of_reserves(before: Tenancy, after: Tenancy, in_use: InUse) -> Iterator[str]:
    """A larger reserve must find room beside what others hold and cannot be made to give back."""
    grown = [
        name
        for name in CLASS_NAMES
        if getattr(after.classes, name).reserved_kv_fraction
        > getattr(before.classes, name).reserved_kv_fraction
    ]
    if not grown:
        return
    needed = 0.0
    for name in CLASS_NAMES:
        config: ClassConfig = getattr(after.classes, name)
        held = 0 if config.preemptible else in_use.classes.get(name, Held()).num_blocks
        needed += max(held, config.reserved_kv_fraction * in_use.num_blocks)
    if needed > in_use.num_blocks:
        yield (
            f"classes.{grown[0]}.reserved_kv_fraction: reserves and what classes that cannot be"
            f" preempted hold add up to {needed:.0f} of {in_use.num_blocks} KV blocks"
        )


def _tenant_lines(
    path: str, old: TenantConfig, new: TenantConfig, held: Held, in_use: InUse
) -> Iterator[str]:
    quota = new.kv_quota_fraction * in_use.num_blocks
    if new.kv_quota_fraction < old.kv_quota_fraction and quota < held.num_blocks:
        yield _holds(f"{path}.kv_quota_fraction", quota, held.num_blocks)
    is_lower = 0 < new.max_concurrency < (old.max_concurrency or 1 << 31)
    if is_lower and new.max_concurrency < held.num_running:
        yield _runs(f"{path}.max_concurrency", new.max_concurrency, held.num_running)


def _holds(path: str, allowed: float, held: float) -> str:
    return f"{path} would be {allowed:.0f} KV blocks, {held:.0f} are in use now"


def _runs(path: str, allowed: int, running: int) -> str:
    return f"{path} would allow {allowed} running requests, {running} run now"
