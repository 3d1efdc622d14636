"""What arrives when, for whom, with which promise: the input of a simulation.

Owns: the ways from a trace to a workload (as recorded, faster, or resampled at a rate), and who is
made the tenant and class of each request. Never knows: files, policies, time as it passes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.simulation.traces import HASHED_BLOCK_TOKENS, Trace
from core.tenancy.classes import ClassesConfig, TrafficClass
from core.tenancy.tenants import TenantConfig

Mask = npt.NDArray[np.bool_]

START_NS = 1_000_000_000  # of the simulated time; 0 means "never" in stamps
HASH_BYTES = 12  # of a digest's 16; the rest counts the blocks within a hashed one
ZIPF_EXPONENT = 1.0
MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class Promise:
    """What a class is promised: time to the first token, and the longest gap after it; 0 = none."""

    ttft_s: float = 0.0
    itl_s: float = 0.0


def promises_of(classes: ClassesConfig) -> dict[TrafficClass, Promise]:
    """Return what a configuration promises to each class."""
    configs = {each: classes.of(each) for each in TrafficClass}
    return {
        each: Promise(config.ttft_ms / MS_PER_S, config.itl_ms / MS_PER_S)
        for each, config in configs.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in the order of arrival, a column entry each; request ids are index + 1."""

    arrival_ns: npt.NDArray[np.int64]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    tenants: tuple[str, ...]
    tenant_index: npt.NDArray[np.int64]
    traffic_class: npt.NDArray[np.int64]
    promises: Mapping[TrafficClass, Promise]
    hash_ids: tuple[tuple[int, ...], ...] = ()
    names_class: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))  # empty = all do
    max_tokens: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_ns)

    @property
    def duration_s(self) -> float:
        """Time from the first to the last arrival."""
        return float(self.arrival_ns[-1] - self.arrival_ns[0]) / NS_PER_S

    def ttft_deadline_ns(self) -> npt.NDArray[np.int64]:
        """Return when the first token is due, int64[n]; 0 = nothing is promised."""
        promised = self._by_class([self._of(c).ttft_s for c in TrafficClass])
        return np.where(promised > 0, self.arrival_ns + promised, 0)

    def itl_cap_ns(self) -> npt.NDArray[np.int64]:
        """Return the longest promised gap, int64[n]; 0 = nothing is promised."""
        return self._by_class([self._of(c).itl_s for c in TrafficClass])

    def asked_tokens(self, usual: int) -> npt.NDArray[np.int64]:
        """Return the max_tokens of each request, int64[n]: as recorded, else `usual`, and never
        less than its output.
        """
        asked = np.full(len(self), usual, np.int64)
        if len(self.max_tokens):
            asked = np.where(self.max_tokens > 0, self.max_tokens, asked)
        return np.maximum(asked, self.output_tokens)

    def prefix_digests(self, index: int, block_size: int) -> tuple[bytes, ...]:
        """Return a name for each KV block that lies in the hashed blocks of a prompt."""
        if not self.hash_ids:
            return ()
        parts = HASHED_BLOCK_TOKENS // block_size
        names = (value.to_bytes(HASH_BYTES, "little") for value in self.hash_ids[index])
        num_blocks = int(self.prompt_tokens[index]) // block_size
        digests = [name + part.to_bytes(4, "little") for name in names for part in range(parts)]
        return tuple(digests[:num_blocks])

    def with_promises(self, promises: Mapping[TrafficClass, Promise]) -> "Workload":
        """Return the same requests with other promises."""
        return replace(self, promises=promises)

    def _of(self, traffic_class: TrafficClass) -> Promise:
        return self.promises.get(traffic_class, Promise())

    def _by_class(self, seconds: list[float]) -> npt.NDArray[np.int64]:
        table = np.round(np.array(seconds) * NS_PER_S).astype(np.int64)
        column: npt.NDArray[np.int64] = table[self.traffic_class]
        return column


def as_recorded(trace: Trace, *, speed: float = 1.0, spread_s: float = 0.0) -> Workload:
    """Return the requests of a trace, `speed` times as fast.

    Arrivals with the same stamp are spread evenly over the next `spread_s` seconds of the trace.
    """
    arrival_s = _spread(trace.arrival_s, spread_s) if spread_s else trace.arrival_s
    return Workload(
        arrival_ns=START_NS + np.round((arrival_s - arrival_s[0]) / speed * NS_PER_S).astype(int),
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        tenants=tuple(name or "default" for name in trace.tenants),
        tenant_index=trace.tenant_index,
        traffic_class=trace.traffic_class,
        promises={},
        hash_ids=trace.hash_ids,
        names_class=trace.names_class,
        max_tokens=trace.max_tokens,
    )


def resampled(trace: Trace, *, qps: float, num_requests: int, seed: int) -> Workload:
    """Return Poisson arrivals at `qps` a second whose lengths are drawn from a trace, in pairs.

    The same seed gives the same requests at every rate, only closer together.
    """
    random = np.random.default_rng(seed)
    gaps_s = random.exponential(1.0, num_requests) / qps
    chosen = random.integers(0, len(trace), num_requests)
    return Workload(
        arrival_ns=START_NS + np.round(np.cumsum(gaps_s) * NS_PER_S).astype(int),
        prompt_tokens=trace.prompt_tokens[chosen],
        output_tokens=trace.output_tokens[chosen],
        tenants=tuple(name or "default" for name in trace.tenants),
        tenant_index=trace.tenant_index[chosen],
        traffic_class=trace.traffic_class[chosen],
        promises={},
        names_class=trace.names_class[chosen] if len(trace.names_class) else trace.names_class,
        max_tokens=trace.max_tokens[chosen] if len(trace.max_tokens) else trace.max_tokens,
    )


def with_one_tenant(workload: Workload) -> Workload:
    """Return `workload` with everything from one tenant."""
    nobody_else = np.zeros(len(workload), np.int64)
    return replace(workload, tenants=("default",), tenant_index=nobody_else)


def with_zipf_tenants(
    workload: Workload, num_tenants: int, seed: int, configured: Sequence[str] = ()
) -> Workload:
    """Return `workload` with tenants drawn at random, the k-th one k times as rarely as the first.

    Their names are the `configured` ones, and t1, t2, … when those are used up.
    """
    weights = np.arange(1, num_tenants + 1, dtype=float) ** -ZIPF_EXPONENT
    random = np.random.default_rng(seed)
    drawn = random.choice(num_tenants, len(workload), p=weights / weights.sum())
    further = (f"t{number}" for number in range(len(configured) + 1, num_tenants + 1))
    names = (*configured[:num_tenants], *further)
    return replace(workload, tenants=names, tenant_index=drawn)


def with_class_mix(workload: Workload, shares: Mapping[TrafficClass, float], seed: int) -> Workload:
    """Return `workload` with classes drawn at random in proportion to `shares`."""
    classes = np.array([int(each) for each in shares])
    weights = np.array(list(shares.values()), float)
    random = np.random.default_rng(seed)
    drawn = random.choice(classes, len(workload), p=weights / weights.sum())
    return replace(workload, traffic_class=drawn, names_class=np.ones(len(workload), np.bool_))


def with_default_classes(workload: Workload, tenants: Mapping[str, TenantConfig]) -> Workload:
    """Return `workload` where a request that names no class has the default one of its tenant."""
    if not len(workload.names_class):
        return workload
    nobody = TenantConfig(name="nobody")
    defaults = [tenants.get(name, nobody).default_class for name in workload.tenants]
    table = np.array([TrafficClass[name.upper()] for name in defaults])
    classes = np.where(workload.names_class, workload.traffic_class, table[workload.tenant_index])
    return replace(workload, traffic_class=classes)


def _spread(arrival_s: npt.NDArray[np.float64], spread_s: float) -> npt.NDArray[np.float64]:
    _, group, sizes = np.unique(arrival_s, return_inverse=True, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    place = np.arange(len(arrival_s)) - starts[group]
    spread: npt.NDArray[np.float64] = np.sort(arrival_s + spread_s * place / sizes[group])
    return spread
