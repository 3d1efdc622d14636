"""The interface between a policy and the scheduler's mechanism.

A policy owns the order of the waiting requests and every choice between requests. It never touches
blocks, rows or plans: at a step boundary it is handed a `Step`, asks it to grant tokens, and is
told what came of it. The step clips every grant to the hard limits, so a policy can be unfair or
wasteful but not unsafe.

    scheduler                                         policy
    promises and caps are new, or have changed    →   configure
    a request arrives: its class; may it wait?    →   classify, refusal
    it waits, or returns to its place             →   add
    it was started, or ended while waiting        →   remove
    it has a row; it has lost it                  →   started, stopped
    it keeps its row, but not its last tokens     →   shortened
    it has ended                                  →   ended
    an executor is ready, its steps were timed    →   replica_up
    there are other KV pools; who fits into none? →   know_pools, never_fits
    step boundary, decodes are in the plan        →   fill: grant, grant, … (defer, preempt, shed)
    the step was computed                         →   measured
    between steps                                 →   tend (shed)
    a tenant index passes to another tenant       →   forget_tenant
    a running request cannot grow                 →   victim
    how many blocks must stay after a start       →   headroom_blocks
    an operator asks why a request waits          →   why
    replicas are compared                         →   cost_model
    the board shows how good predictions are      →   prediction
    the board shows who was served how much       →   standing, accounts
    the board shows what steps left unused        →   leftovers
    a simulation asks who is safe                 →   is_protected
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from core.errors import Rejection
from core.policy.cost_model import CostBasis, CostModel
from core.policy.limits import Limits
from core.request import Request


class Blocked(IntEnum):
    """What kept a request from getting (more) tokens in this step."""

    NOTHING = 0
    TOKENS = 1  # the step's token budget is used up
    SEQUENCES = 2  # max_num_seqs, or no free row
    PARTIAL_PREFILLS = 3  # it would be one prompt too many that is partly computed
    MEMORY = 4  # its blocks do not fit
    ELSEWHERE = 5  # another replica is the better place, or the only one it fits
    DRAINING = 6  # the replica starts nothing
    ITL = 7  # more tokens would break the promised gap of a decode in the step
    WINDOW = 8  # its flow is ahead of its share
    CLAIM = 9  # blocks are kept for a request before it that does not fit yet
    RESERVE = 10  # what is left is reserved for another class
    CLASS_CAP = 11  # its class has all that it may use
    CONCURRENCY = 12  # its tenant has as many running as it may
    RATE = 13  # its tenant's token budget is overdrawn
    KV_QUOTA = 14  # its tenant holds all the blocks it may
    HEADROOM = 15  # it would fit, but those that run could not grow
    PAUSED = 16  # an operator has paused its tenant or class
    INCOMPATIBLE = 17  # the replica may not serve it: tenant, adapter, cache format
    DEADLINE_ORDER = 18  # others of its flow are due sooner


class Relief(IntEnum):
    """How a preempted request comes back."""

    RECOMPUTE = 0
    SWAP = 1  # its private blocks wait in host memory


@dataclass(frozen=True, slots=True)
class Preemption:
    """Who gives memory back, and how."""

    request: Request
    relief: Relief = Relief.RECOMPUTE
    num_blocks: int = 0  # from its tail, it keeps row and rest; 0 = all, it waits


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a waiting request will start; a moment of 0 is one that nobody can tell."""

    start_ns: int = 0
    soonest_ns: int = 0  # it will hardly be before
    latest_ns: int = 0  # nor after
    is_doubtful: bool = False  # it will rather be refused, if others go on coming

    def not_before(self, time_ns: int) -> "Forecast":
        """Return the same of who has to wait until then in any case."""
        return replace(
            self,
            start_ns=max(self.start_ns, time_ns),
            soonest_ns=max(self.soonest_ns, time_ns),
            latest_ns=self.latest_ns and max(self.latest_ns, time_ns),
        )


UNFORESEEN = Forecast()


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a request waits: the constraint that held it back last, and the two numbers compared."""

    blocked: Blocked
    measured: float = 0.0
    threshold: float = 0.0
    place: int = 0  # requests of its flow before it
    forecast: Forecast = UNFORESEEN


class Grant(NamedTuple):
    """The step's answer: tokens granted (0 if blocked)."""

    num_tokens: int
    blocked: Blocked = Blocked.NOTHING


class DecodeBatch(NamedTuple):
    """The decodes in a step, a column entry each; a promise of 0 is none."""

    tenant_index: npt.NDArray[np.int32]
    traffic_class: npt.NDArray[np.int32]
    context_tokens: npt.NDArray[np.int32]  # in the KV cache before the step
    num_output_tokens: npt.NDArray[np.int32]  # delivered so far
    ttft_deadline_ns: npt.NDArray[np.int64]
    itl_cap_ns: npt.NDArray[np.int64]
    last_token_ns: npt.NDArray[np.int64]  # when it was delivered; 0 = it is on its way
    rows: npt.NDArray[np.int64] = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Prediction:
    """How well the steps of a replica are predicted; pairs are (decodes alone, with prompts)."""

    factors: tuple[float, float]  # by which steps differ from what was measured at the start
    sigmas: tuple[float, float]  # relative scatter that is left
    infeasible_steps: int  # whose decodes alone broke a promised gap
    predicted_ns: int = 0  # of all steps that were predicted and measured, together
    measured_ns: int = 0  # the same steps as they were
    expected_ns: int = 0  # how long the longest of those that are not measured yet will last


@dataclass(frozen=True, slots=True)
class Standing:
    """Who was served how much; flows are tenant index × 4 + class, further ones were not."""

    charged: npt.NDArray[np.int64]  # by flow, so far, in the policy's unit
    leads: npt.NDArray[np.int64]  # by flow: charge for weight 1 ahead of the least served one
    class_leads: npt.NDArray[np.int64]  # by class, the same
    budget_tokens: Mapping[str, int]  # left to the tenants that have a token-rate budget
    budget_tats_ns: Mapping[str, int] = field(default_factory=dict)  # when that is full again


class Accounts(NamedTuple):
    """What the policy charges by, and what nobody is charged for."""

    price_epoch: int = 0  # of the prices in force; 0 = nobody is charged
    system_charged: int = 0  # work done again, and for requests that failed


@dataclass(frozen=True, slots=True)
class RunningRows:
    """What runs on a replica, an entry a row: a live view, not to be written to.

    A row without a request is not active and holds nothing.
    """

    requests: Sequence[Request | None]
    active: npt.NDArray[np.bool_]
    tenant_index: npt.NDArray[np.int32]
    traffic_class: npt.NDArray[np.int32]
    prompt_len: npt.NDArray[np.int32]
    num_tokens: npt.NDArray[np.int32]  # prompt + delivered ids
    num_computed: npt.NDArray[np.int32]  # of those, in the KV cache
    max_length: npt.NDArray[np.int32]  # prompt + the most it may generate
    num_blocks: npt.NDArray[np.int32]


class ReplicaLoad(NamedTuple):
    """A replica as an admission test sees it."""

    num_blocks: int
    num_available_blocks: int  # free + evictable
    num_running: int
    replica: int = 0
    num_fenced_blocks: int = 0  # come free when plans in flight are acknowledged
    num_free_host_blocks: int = 0  # room for the blocks of swapped requests
    block_bytes: int = 0  # of a KV block, what swapping it copies; 0 = unknown
    swap_gb_per_s: float = 0.0  # speed of that, one way, as measured; 0 = unknown
    rows: RunningRows | None = None


class Step(Protocol):
    """A step of one replica in the making: the policy's view and its verbs."""

    @property
    def replica(self) -> int:
        """Whose step it is."""
        ...

    @property
    def number(self) -> int:
        """The number of the step, if it becomes one; `measured` names it."""
        ...

    @property
    def now_ns(self) -> int:
        """When the step is planned."""
        ...

    @property
    def tokens_left(self) -> int:
        """Tokens of the budget not yet granted."""
        ...

    @property
    def num_running(self) -> int:
        """Requests that have a row of this replica, those started in this step included."""
        ...

    @property
    def may_start_requests(self) -> bool:
        """Whether a waiting request could start in this step at all: there is a free row."""
        ...

    def prefills(self) -> list[Request]:
        """Return the running requests with tokens left to prefill."""
        ...

    def decodes(self) -> DecodeBatch:
        """Return the decodes in the step."""
        ...

    def running(self) -> list[Request]:
        """Return the running requests that may be preempted."""
        ...

    def remaining(self, request: Request) -> int:
        """Return the tokens left to prefill; of a waiting request all, as if none were cached."""
        ...

    def hit_tokens(self, request: Request) -> int:
        """Return how many tokens of a waiting `request` the prefix cache holds."""
        ...

    def start(self, request: Request) -> Blocked:
        """Give a waiting `request` its row and blocks without any token yet."""
        ...

    def grant(self, request: Request, max_tokens: int) -> Grant:
        """Compute up to `max_tokens` more prompt tokens of `request`; start it if it waits."""
        ...

    def defer(self, decodes: npt.NDArray[np.bool_]) -> None:
        """Leave some decodes out of this step, bool[n] as in `decodes()`; they keep blocks."""
        ...

    def load(self) -> ReplicaLoad:
        """Return the replica's numbers as they are now."""
        ...

    def preempt(
        self, request: Request, relief: Relief = Relief.RECOMPUTE, num_blocks: int = 0
    ) -> None:
        """Take back memory of a running request: all, and it returns to its place in the queue; or
        the last `num_blocks`, and it computes them again when they fit.
        """
        ...

    def shed(self, request: Request, rejection: Rejection) -> None:
        """Refuse a waiting `request` that cannot be served as promised."""
        ...

    def missing_blocks(self, request: Request) -> int:
        """Return how many blocks must be freed, besides fenced ones, before `request` fits."""
        ...


class WaitingRoom(Protocol):
    """What a policy may do between steps."""

    def shed(self, request: Request, rejection: Rejection, now_ns: int) -> None:
        """Refuse a waiting `request` that cannot be served as promised."""
        ...

    def hit_tokens(self, request: Request) -> int:
        """Return how many tokens of a waiting `request` need not be computed, where most is known:
        the prefix cache of a replica holds them, or its host memory.
        """
        ...


class Policy(Protocol):
    """Every choice between requests. Methods with a body may be left as they are."""

    def configure(self, limits: Limits) -> None:
        """Take over the promises and caps from now on."""
        return None

    def classify(self, request: Request) -> None:
        """Put a new `request` into another class than it asked for; promises follow its class."""
        return None

    def refusal(self, request: Request, now_ns: int) -> Rejection | None:
        """Return why a new `request` may not wait; None: it may, and `add` follows."""
        return None

    def place(self, request: Request) -> tuple[int, ...]:
        """Return where `request` stands in a total order that never changes, for equal need."""
        ...

    def add(self, request: Request) -> None:
        """Let `request` wait: it is new, or returns to its place after a preemption or a crash."""
        ...

    def remove(self, request: Request) -> None:
        """Forget a waiting `request`: it was started, or it ended."""
        ...

    def started(self, request: Request) -> None:
        """Take in that `request` has a row and blocks of `request.replica`."""
        return None

    def stopped(self, request: Request) -> None:
        """Take in that `request` has lost its row: preempted, ended, or its executor died."""
        return None

    def shortened(self, request: Request) -> None:
        """Take in that a running `request` has lost the last of its tokens, and its turn in the
        step that is being filled; it keeps its row.
        """
        return None

    def ended(self, request: Request, now_ns: int) -> None:
        """Take in the end of a request that `refusal` had let in; its status says which."""
        return None

    def forget_tenant(self, index: int) -> None:
        """Forget all about a tenant index, of which nothing waits or runs: another tenant gets it,
        and shall not be served more or less for what this one was.
        """
        return None

    def replica_up(self, replica: int, basis: CostBasis | None) -> None:
        """Take in that an executor is ready; `basis` is what its steps cost, None if unknown."""
        return None

    def know_pools(self, num_blocks: Mapping[int, int]) -> None:
        """Take in how large the KV pools are, by replica that is there or may come back; 0 = that
        is not known.
        """
        return None

    def never_fits(self, request: Request) -> Rejection | None:
        """Return why `request` could never start with these pools and limits."""
        return None

    def fill(self, step: Step) -> None:
        """Hand out what the decodes leave of `step`."""
        ...

    def measured(self, replica: int, step: int, duration_ns: int) -> None:
        """Take in how long a step took."""
        return None

    def tend(self, room: WaitingRoom, now_ns: int) -> None:
        """Do what needs no step; called whenever events were taken in."""
        return None

    def next_timer_ns(self) -> int | None:
        """Return when `tend` is wanted at the latest; None = with the next event."""
        return None

    def victim(
        self, candidates: Sequence[Request], beneficiary: Request, load: ReplicaLoad
    ) -> Preemption | None:
        """Return who gives memory back so that the running `beneficiary` can grow, itself included.

        None: nobody; it waits for memory. Victims must be lower in a total order, so that no two
        requests can preempt each other in turn.
        """
        ...

    def headroom_blocks(self, request: Request, load: ReplicaLoad) -> int:
        """Return how many blocks must stay available when `request` starts."""
        ...

    def why(self, request: Request) -> Wait | None:
        """Return why a waiting `request` was not started so far, None if nobody knows."""
        return None

    def cost_model(self, replica: int) -> CostModel | None:
        """Return what predicts the steps of `replica`, None if nothing does."""
        return None

    def prediction(self, replica: int) -> Prediction | None:
        """Return how well steps of `replica` are predicted, None if they are not."""
        return None

    def standing(self, now_ns: int) -> Standing | None:
        """Return who was served how much, None if the policy does not count it."""
        return None

    def accounts(self) -> Accounts:
        """Return what is charged by, and what nobody is charged for."""
        return Accounts()

    def leftovers(self) -> Mapping[Blocked, int]:
        """Return how many tokens steps have left unused while somebody waited, by reason."""
        return {}

    def is_protected(self, request: Request) -> bool:
        """Tell whether a waiting `request` will get its first token in time, whoever comes."""
        return False

    def check_integrity(self) -> None:
        """Assert that the waiting order is whole."""
        ...
