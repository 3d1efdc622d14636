"""Everything that can happen to the engine core from outside, one frozen record each.

Never knows: where an event comes from. Don't subclass these; `EngineCore.on_events` has one case
for each.
"""

from dataclasses import dataclass

from core.policy.cost_model import CostBasis
from core.policy.limits import Limits
from core.request import Request


@dataclass(frozen=True, slots=True)
class Submit:
    """A request arrives. `request.num_output_tokens` > 0: it is resumed behind so many tokens."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """The client of a request is gone since `closed_ns` (0 = just now). Unknown ids are ignored."""

    request_id: int
    closed_ns: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop string was found: the request ends with exactly `num_output_tokens` delivered."""

    request_id: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Whom a replica serves, and with what; an empty set is no restriction."""

    classes: frozenset[int] = frozenset()
    adapters: frozenset[str] = frozenset()
    model: str = ""  # what it computes; empty = whatever the engine serves
    numerics: str = ""  # outputs of replicas with the same are the same


NO_RESTRICTION = Offer()


@dataclass(frozen=True, slots=True)
class ReplicaUp:
    """An executor is ready under a new epoch, with empty pools on device and host."""

    replica: int
    epoch: int
    num_blocks: int
    basis: CostBasis | None = None  # what its steps cost, as measured when it started
    num_host_blocks: int = 0  # for swapped requests; 0 = it never swaps
    block_bytes: int = 0  # what swapping a block copies; 0 = it has not said
    offer: Offer = NO_RESTRICTION
    swap_gb_per_s: float = 0.0  # speed of such copies, one way, as measured; 0 = it has not said

    def __str__(self) -> str:
        return f"replica {self.replica} is ready: epoch {self.epoch}, {self.num_blocks} KV blocks"


@dataclass(frozen=True, slots=True)
class ReplicaDown:
    """The executor is dead; it may come back. Its requests return to their places in the queue."""

    replica: int

    def __str__(self) -> str:
        return f"replica {self.replica} is down: its requests are queued again"


@dataclass(frozen=True, slots=True)
class ReplicaGone:
    """The executor is given up. If it was the last one, every request ends."""

    replica: int

    def __str__(self) -> str:
        return f"replica {self.replica} is given up"


@dataclass(frozen=True, slots=True)
class TokenizerDown:
    """A tokenizer process is dead: its requests end without outputs, which nobody could read."""

    tokenizer: int

    def __str__(self) -> str:
        return f"tokenizer {self.tokenizer} is down: its requests end"


@dataclass(frozen=True, slots=True)
class CancelTenant:
    """An operator aborts all requests of a tenant."""

    tenant: str


@dataclass(frozen=True, slots=True)
class Drain:
    """New requests are refused from now on; accepted ones are served."""


@dataclass(frozen=True, slots=True)
class Undrain:
    """New requests are accepted again."""


@dataclass(frozen=True, slots=True)
class DrainReplica:
    """A replica starts no further request; its running ones are served."""

    replica: int


@dataclass(frozen=True, slots=True)
class UndrainReplica:
    """A replica starts requests again."""

    replica: int


@dataclass(frozen=True, slots=True)
class Configure:
    """The promises and caps of classes and tenants have changed."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class Preempt:
    """A running request shall give back row and memory. Others are left as they are."""

    request_id: int


@dataclass(frozen=True, slots=True)
class DropCache:
    """Cached prefixes shall be forgotten, of one tenant, or of all (None)."""

    tenant: str | None = None


Event = (
    Submit
    | Abort
    | Stop
    | ReplicaUp
    | ReplicaDown
    | ReplicaGone
    | TokenizerDown
    | CancelTenant
    | Drain
    | Undrain
    | DrainReplica
    | UndrainReplica
    | Configure
    | Preempt
    | DropCache
)
