"""What each tenant has waiting, and which new requests its limits do not let wait.

Owns: the queue of each tenant as two numbers and a drain rate, the sizes of the pools, and every
refusal but that of the budget. Never knows: the order of waiting requests, budgets, steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.arrival_limits import (
    forbidden,
    kv_share,
    paused,
    prompt_cap,
    queue_full_requests,
    queue_full_tokens,
)
from core.drain_rate import DrainRate
from core.errors import Rejection
from core.policy.limits import Limits
from core.request import Request
from core.tenancy.classes import TrafficClass


@dataclass(slots=True)
class TenantQueue:
    """One tenant's requests that never started."""

    num_requests: int = 0
    num_tokens: int = 0
    drain_rate: DrainRate = field(default_factory=DrainRate)

    def retry_after_ms(self, num_tokens: int, now_ns: int) -> int:
        """Return when there will probably be room for so many tokens, ms."""
        return self.drain_rate.retry_after_ms(num_tokens, self.num_tokens, now_ns)


class Arrivals:
    """The limits at arrival, of all tenants."""

    def __init__(self, limits: Limits, block_size: int) -> None:
        """Start with nobody waiting and no pool known."""
        self.limits = limits
        self._block_size = block_size
        self._queues: dict[str, TenantQueue] = {}
        self.pools: Mapping[int, int] = {}  # blocks by replica; 0 = not known yet

    def classify(self, request: Request) -> None:
        """Demote a new `request` whose prompt its class does not take, if the class says so."""
        config = self.limits.of(request.traffic_class)
        is_over = 0 < config.max_prompt_tokens < request.prompt_len
        allowed = self.limits.tenant(request.tenant).classes
        if is_over and config.over_cap == "demote" and TrafficClass.STANDARD.label in allowed:
            request.traffic_class = TrafficClass.STANDARD

    def refusal(self, request: Request, now_ns: int) -> Rejection | None:
        """Return why a new `request` may not wait; the first limit that is broken."""
        tenant, traffic_class = self.limits.tenant(request.tenant), request.traffic_class
        return (
            forbidden(tenant, traffic_class)
            or prompt_cap(self.limits.of(traffic_class), traffic_class, request.prompt_len)
            or self.never_fits(request)
            or paused(f"tenants[{tenant.name}]", tenant.name in self.limits.paused)
            or paused(
                f"classes.{traffic_class.label}",
                traffic_class.label in self.limits.paused_classes,
            )
            or self._queue_full(request, now_ns)
        )

    def never_fits(self, request: Request) -> Rejection | None:
        """Refuse what no pool that may serve it holds within the shares of tenant and class."""
        tenant, label = self.limits.tenant(request.tenant), request.traffic_class.label
        allowed = tenant.replicas or tuple(self.pools)
        sizes = [n for replica, n in self.pools.items() if replica in allowed]
        largest = max(sizes) if sizes and min(sizes) > 0 else 0
        needed = -(-request.max_length // self._block_size)
        share = self.limits.of(request.traffic_class).max_kv_fraction
        tenant_knob = f"tenants[{tenant.name}].kv_quota_fraction"
        return kv_share(tenant.kv_quota_fraction, tenant_knob, needed, largest) or kv_share(
            share, f"classes.{label}.max_kv_fraction", needed, largest
        )

    def add(self, request: Request) -> None:
        """Count a request that begins to wait for its first start."""
        queue = self._queues.setdefault(request.tenant, TenantQueue())
        queue.num_requests += 1
        queue.num_tokens += request.max_length

    def remove(self, request: Request, now_ns: int) -> None:
        """Count it no more: it starts, or has ended."""
        queue = self._queues[request.tenant]
        queue.num_requests -= 1
        queue.num_tokens -= request.max_length
        queue.drain_rate.observe(request.max_length, now_ns)

    def _queue_full(self, request: Request, now_ns: int) -> Rejection | None:
        tenant = self.limits.tenant(request.tenant)
        if not (tenant.max_queued_requests or tenant.max_queued_tokens):
            return None
        queue = self._queues.get(request.tenant) or TenantQueue()
        num_tokens = request.max_length
        retry_after_ms = queue.retry_after_ms(num_tokens, now_ns)
        return queue_full_requests(
            tenant, queue.num_requests, 1, retry_after_ms
        ) or queue_full_tokens(tenant, queue.num_tokens, num_tokens, retry_after_ms)
