"""Who a tenant is, its share, and what it may use at the most.

Owns: the settings of one tenant with every check. Never knows: other tenants (`tenancy`), or how a
limit is kept (`core.policy`). Shares are fractions of a replica.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from core.settings.checks import in_range, is_name, one_of, sha256_faults
from core.tenancy.classes import CLASS_NAMES, MAX_WEIGHT, MIN_WEIGHT
from core.tenancy.rows import OTHER_NAME

DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfig:
    """One tenant: who it is, its share, and what it may use at the most."""

    name: str
    """Unique; letters, digits, `-`, `_`, `.`; at most 63 bytes."""
    key_sha256: tuple[str, ...] = ()
    """SHA-256 (hex) of each API key."""
    default_class: str = "standard"
    """Class of requests that name none."""
    classes: tuple[str, ...] = CLASS_NAMES
    """Classes the tenant may use."""
    weight: float = 1.0
    """Share of a class among its tenants that have work."""
    max_concurrency: int = 0
    """Requests running at once, further ones wait; 0 = no cap of the tenant."""
    max_queued_requests: int = 0
    """Requests waiting for their start, further ones get 429; 0 = no cap of the tenant."""
    max_queued_tokens: int = 0
    """Prompt + max_tokens of its waiting requests, at the most, tokens; 0 = no cap."""
    tokens_per_minute: int = 0
    """Token-rate budget, prompt + output tokens; 0 = none."""
    burst_tokens: int = 0
    """Tokens that may be used at once after a pause; 0 = what a minute gives."""
    budget_mode: str = "strict"
    """`strict` debits prompt + max_tokens at arrival and refunds, `postpaid` what was used."""
    kv_quota_fraction: float = 1.0
    """Share of a replica's KV blocks that the tenant may hold at the most."""
    replicas: tuple[int, ...] = ()
    """Replicas that serve the tenant; empty = all."""

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        path = f"tenants[{self.name}]"
        if not is_name(self.name, 63, "-_."):
            yield f"{path}.name must be 1 to 63 letters, digits, '-', '_' or '.'"
        if self.name == OTHER_NAME:
            yield f"{path}.name is what tenants without a row of their own are counted under"
        for name in self.classes:
            yield from one_of(f"{path}.classes", name, CLASS_NAMES)
        if not self.classes:
            yield f"{path}.classes is empty: name at least one of {', '.join(CLASS_NAMES)}"
        else:
            yield from one_of(f"{path}.default_class", self.default_class, self.classes)
        yield from _named_twice(f"{path}.classes", self.classes)
        yield from _named_twice(f"{path}.replicas", self.replicas)
        yield from _named_twice(f"{path}.key_sha256", self.key_sha256)
        for digest in self.key_sha256:
            yield from sha256_faults(f"{path}.key_sha256", digest)
        yield from in_range(f"{path}.weight", self.weight, MIN_WEIGHT, MAX_WEIGHT)
        for name in ("max_concurrency", "max_queued_requests"):
            yield from in_range(f"{path}.{name}", getattr(self, name), 0, 1_000_000)
        for name in ("max_queued_tokens", "tokens_per_minute", "burst_tokens"):
            yield from in_range(f"{path}.{name}", getattr(self, name), 0, 2**40)
        if self.burst_tokens and not self.tokens_per_minute:
            yield f"{path}.burst_tokens = {self.burst_tokens} needs {path}.tokens_per_minute"
        yield from one_of(f"{path}.budget_mode", self.budget_mode, ("strict", "postpaid"))
        yield from in_range(f"{path}.kv_quota_fraction", self.kv_quota_fraction, 0.001, 1.0)
        for replica in self.replicas:
            yield from in_range(f"{path}.replicas", replica, 0, 7)


def _named_twice(path: str, values: tuple[object, ...]) -> Iterator[str]:
    counts = Counter(values)
    yield from (f"{path} names {value!r} twice" for value in counts if counts[value] > 1)
