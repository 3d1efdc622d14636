"""What is promised to each class of traffic and to each tenant, and what it may use at the most.

Owns: the settings of classes and tenants with every check, alone and together; all of them can be
changed at run time. Never knows: how a promise is kept (`core.policy`). Shares are fractions of a
replica: of its step tokens, its KV blocks, its sequences.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import IntEnum

from core.config_checks import in_range, is_name, one_of, sha256_faults
from core.tenant_rows import OTHER_NAME

MAX_TENANTS = 4096
DEFAULT_TENANT = "default"
MAX_MS = 86_400_000
MAX_WEIGHT = 1000.0
MIN_WEIGHT = 0.001


class TrafficClass(IntEnum):
    """The four classes of traffic; the value is their index in arrays and on the board."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2
    ADMINISTRATIVE = 3

    @property
    def label(self) -> str:
        """The name in configuration, headers and metrics."""
        return self.name.lower()


NUM_CLASSES = len(TrafficClass)
CLASS_NAMES = tuple(c.label for c in TrafficClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassConfig:
    """One class: its promises, its share, its guardrails."""

    weight: float = 1.0
    """Share of the engine among the classes that have work."""
    ttft_ms: int = 0
    """Promise: first token within this time after arrival, ms; 0 = none."""
    itl_ms: int = 0
    """Promise: no longer gap between two tokens, ms; 0 = none."""
    queue_deadline_ms: int = 0
    """A request that has not started after this time is refused, ms; 0 = as in [scheduler]."""
    max_prompt_tokens: int = 0
    """Longest prompt, tokens; 0 = no cap of the class."""
    over_cap: str = "reject"
    """What happens to a longer prompt: `reject`, or `demote` to class standard."""
    reserved_step_fraction: float = 0.0
    """Share of a step's tokens that the class gets before any other, if it has work."""
    reserved_seqs: int = 0
    """Sequences of a replica that others may take only if they can be preempted for it."""
    reserved_kv_fraction: float = 0.0
    """Share of the KV blocks that others may take only if they can be preempted for it."""
    max_step_fraction: float = 1.0
    """Share of the tokens of steps that the class may take at the most; saved up for four steps."""
    max_seqs: int = 0
    """Sequences of a replica at the most; 0 = no cap of the class."""
    max_kv_fraction: float = 1.0
    """Share of the KV blocks that the class may hold at the most."""
    strict_first: bool = False
    """Served before every other class, within its caps."""
    preemptible: bool = False
    """May use what is reserved for others, and is preempted when they want it."""
    pausable: bool = False
    """Decodes may skip steps, so that the promises of others hold."""
    sheddable: bool = True
    """Waiting requests that will miss their promise are refused early."""
    output_quantile: float = 0.8
    """Quantile of past output lengths that admission reserves KV blocks for."""

    def faults(self, path: str) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted; `path` is that of the class."""
        yield from in_range(f"{path}.weight", self.weight, MIN_WEIGHT, MAX_WEIGHT)
        for name in ("ttft_ms", "itl_ms", "queue_deadline_ms"):
            yield from in_range(f"{path}.{name}", getattr(self, name), 0, MAX_MS)
        yield from in_range(f"{path}.max_prompt_tokens", self.max_prompt_tokens, 0, 2**24)
        yield from one_of(f"{path}.over_cap", self.over_cap, ("reject", "demote"))
        for name in ("reserved_step_fraction", "reserved_kv_fraction"):
            yield from in_range(f"{path}.{name}", getattr(self, name), 0.0, 0.9)
        for name in ("max_step_fraction", "max_kv_fraction", "output_quantile"):
            yield from in_range(f"{path}.{name}", getattr(self, name), 0.01, 1.0)
        for name in ("reserved_seqs", "max_seqs"):
            yield from in_range(f"{path}.{name}", getattr(self, name), 0, 4096)
        yield from self._contradictions(path)

    def _contradictions(self, path: str) -> Iterator[str]:
        """Yield one line for each pair of keys that cannot both hold."""
        for reserved, cap in (
            ("reserved_step_fraction", "max_step_fraction"),
            ("reserved_kv_fraction", "max_kv_fraction"),
            ("reserved_seqs", "max_seqs"),
        ):
            low, high = getattr(self, reserved), getattr(self, cap)
            if low > high and (cap != "max_seqs" or high):
                yield f"{path}.{reserved} = {low} exceeds {path}.{cap} = {high}"
        if self.over_cap == "demote" and not self.max_prompt_tokens:
            yield f"{path}.over_cap = 'demote' needs {path}.max_prompt_tokens"
        if self.pausable and self.itl_ms:
            yield f"{path}.pausable contradicts {path}.itl_ms = {self.itl_ms}: a pause is a gap"


def _interactive() -> ClassConfig:
    return ClassConfig(
        weight=8.0,
        ttft_ms=2000,
        itl_ms=250,
        queue_deadline_ms=30_000,
        reserved_step_fraction=0.5,
        reserved_seqs=4,
        reserved_kv_fraction=0.1,
        output_quantile=0.95,
    )


def _standard() -> ClassConfig:
    return ClassConfig(weight=4.0, ttft_ms=60_000, itl_ms=250)


def _batch() -> ClassConfig:
    return ClassConfig(preemptible=True, pausable=True, output_quantile=0.5)


def _administrative() -> ClassConfig:
    return ClassConfig(
        ttft_ms=1000,
        itl_ms=250,
        queue_deadline_ms=30_000,
        reserved_seqs=1,
        reserved_kv_fraction=0.02,
        max_step_fraction=0.1,
        max_seqs=2,
        max_kv_fraction=0.05,
        strict_first=True,
        sheddable=False,
        output_quantile=0.95,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassesConfig:
    """The four classes, a table each."""

    interactive: ClassConfig = field(default_factory=_interactive)
    standard: ClassConfig = field(default_factory=_standard)
    batch: ClassConfig = field(default_factory=_batch)
    administrative: ClassConfig = field(default_factory=_administrative)

    def of(self, traffic_class: TrafficClass) -> ClassConfig:
        """Return the settings of one class."""
        config: ClassConfig = getattr(self, traffic_class.label)
        return config

    def faults(self) -> Iterator[str]:
        """Yield one line for each key or combination that cannot be accepted."""
        for entry in fields(self):
            yield from getattr(self, entry.name).faults(f"classes.{entry.name}")
        for key in ("reserved_step_fraction", "reserved_kv_fraction"):
            total = sum(getattr(self.of(c), key) for c in TrafficClass)
            if total > 1.0:
                yield f"classes: the reserves {key} add up to {total:.3g}, more than 1"
        if self.standard.over_cap == "demote":
            yield "classes.standard.over_cap = 'demote' would demote to itself: use reject"


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


def _named_twice(path: str, values: tuple[object, ...]) -> Iterator[str]:
    counts = Counter(values)
    yield from (f"{path} names {value!r} twice" for value in counts if counts[value] > 1)


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
