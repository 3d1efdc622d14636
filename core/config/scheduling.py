"""The sections `scheduler` and `policy`: bounds of queues, and the constants of the policy.

Owns: their keys, their docstrings with units, and what they may be. Never knows: files, what is
promised to classes and tenants (`core.tenancy`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from core.settings.checks import in_range, one_of

POLICY_NAMES = ("headrace", "fcfs", "priority", "static")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Queue bounds and the policy."""

    policy: str = "headrace"
    """`headrace` keeps the promises of classes and tenants; `fcfs`, `priority`, `static` do not."""
    max_queued_requests: int = 1024
    """Requests waiting in the scheduler, at the most; further ones get 429."""
    max_queued_tokens: int = 4_194_304
    """Prompt + max_tokens of all waiting requests, at the most, tokens."""
    queue_deadline_ms: int = 300_000
    """A request that has not started after this time is refused, ms."""
    request_timeout_ms: int = 3_600_000
    """A request that has not ended after this time is ended, ms."""
    kv_headroom_fraction: float = 0.02
    """Blocks kept free at admission so that running requests can grow, as a share of the pool."""
    max_preemptions: int = 3
    """After so many preemptions a request is no longer chosen as a victim."""
    poison_crashes: int = 2
    """A request that was in flight at so many executor crashes is ended with an error."""
    drain_timeout_ms: int = 30_000
    """Time running requests get to finish at shutdown, ms."""

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        yield from one_of("scheduler.policy", self.policy, POLICY_NAMES)
        yield from in_range("scheduler.max_queued_requests", self.max_queued_requests, 1, 1_000_000)
        yield from in_range("scheduler.max_queued_tokens", self.max_queued_tokens, 16, 2**40)
        yield from in_range("scheduler.queue_deadline_ms", self.queue_deadline_ms, 1, 86_400_000)
        yield from in_range("scheduler.request_timeout_ms", self.request_timeout_ms, 1, 86_400_000)
        yield from in_range("scheduler.kv_headroom_fraction", self.kv_headroom_fraction, 0.0, 0.5)
        yield from in_range("scheduler.max_preemptions", self.max_preemptions, 0, 1000)
        yield from in_range("scheduler.poison_crashes", self.poison_crashes, 1, 100)
        yield from in_range("scheduler.drain_timeout_ms", self.drain_timeout_ms, 0, 3_600_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """The constants of policy `headrace`; one set for all loads."""

    charge: str = "time"
    """What a flow is charged: modelled device `time`, or `tokens` (1 an input, 2 an output)."""
    class_window_ms: int = 4000
    """Service by which a class may be ahead of its share when its deadlines are earlier, ms."""
    tenant_window_tokens: int = 3000
    """The same for a tenant within its class, prompt tokens."""
    locality_bypass_ms: int = 2000
    """Time for which longer cached prefixes may go before one with a promise, ms; 0 = never."""
    company_fraction: float = 0.25
    """Part of its promise that a prompt with a tight gap cap waits for others, then of the rest."""
    price_epoch_s: int = 60
    """Prices follow the cost model no more often than this, s."""
    kv_price: float = 0.2
    """Price of holding the whole KV pool for a step, as a share of that step."""
    itl_margin: float = 0.2
    """Share by which a predicted step stays below a gap; more at first, and where steps scatter."""
    delivery_ms: int = 5
    """Time of a promised gap kept for tokens on their way, ms; a tenth of the gap at the most."""
    tile_tokens: int = 4
    """A chunk that does not end its prompt is a multiple of this, tokens."""
    quantum_tokens: int = 512
    """Prompt tokens in one grant, at the most."""
    preempt_below_fraction: float = 0.01
    """Available KV blocks below which requests are preempted, as a share of the pool."""
    readmit_above_fraction: float = 0.05
    """Available KV blocks above which preempted requests come back, as a share of the pool."""
    progress_tokens: int = 64
    """Tokens that a request gets at least between two preemptions, or `progress_ms`."""
    progress_ms: int = 2000
    """Time that a request gets at least between two preemptions, or `progress_tokens`, ms."""
    swap_gb_per_s: float = 5.0
    """Speed of copies to host memory where none was measured, one way, GB/s; 0 = never swap."""
    max_preempted_fraction: float = 0.05
    """Share of preempted tokens in all computed ones; above it admission becomes stricter."""
    shed_enter: float = 0.9
    """Predicted wait, as a share of the promise, above which requests are shed."""
    shed_leave: float = 0.7
    """Predicted wait, as a share of the promise, below which shedding ends."""

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        yield from one_of("policy.charge", self.charge, ("time", "tokens"))
        yield from in_range("policy.class_window_ms", self.class_window_ms, 0, 3_600_000)
        yield from in_range("policy.tenant_window_tokens", self.tenant_window_tokens, 0, 2**30)
        yield from in_range("policy.locality_bypass_ms", self.locality_bypass_ms, 0, 3_600_000)
        yield from in_range("policy.price_epoch_s", self.price_epoch_s, 1, 86_400)
        yield from in_range("policy.kv_price", self.kv_price, 0.0, 10.0)
        yield from in_range("policy.itl_margin", self.itl_margin, 0.0, 2.0)
        yield from in_range("policy.delivery_ms", self.delivery_ms, 0, 1000)
        yield from in_range("policy.tile_tokens", self.tile_tokens, 1, 1024)
        yield from in_range("policy.quantum_tokens", self.quantum_tokens, 1, 65536)
        for name in (
            "preempt_below_fraction", "readmit_above_fraction", "max_preempted_fraction",
            "shed_enter", "shed_leave", "company_fraction",
        ):  # fmt: skip
            yield from in_range(f"policy.{name}", getattr(self, name), 0.0, 1.0)
        yield from in_range("policy.swap_gb_per_s", self.swap_gb_per_s, 0.0, 10_000.0)
        yield from in_range("policy.progress_tokens", self.progress_tokens, 0, 2**20)
        yield from in_range("policy.progress_ms", self.progress_ms, 0, 3_600_000)
        for low, high in (
            ("preempt_below_fraction", "readmit_above_fraction"),
            ("shed_leave", "shed_enter"),
        ):
            if getattr(self, low) > getattr(self, high):
                yield f"policy.{low} = {getattr(self, low)} exceeds policy.{high}"
