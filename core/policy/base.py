"""The interface between a policy and the scheduler's mechanism.

A policy owns the order of the waiting requests and every choice between requests. It never touches
blocks, rows, plans or limits: at a step boundary it is handed a `Step`, asks it to grant tokens,
and is told what came of it. The step clips every grant to the hard limits, so a policy can be
unfair or wasteful but not unsafe.

    scheduler                                      policy
    a request arrives, or returns to its place →   add
    it was started, or ended while waiting     →   remove
    step boundary, decodes are in the plan     →   fill: grant, grant, … (preempt)
    a running request cannot grow              →   victim
    how many blocks must stay after a start    →   headroom_blocks
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from core.errors import Rejection
from core.request import Request


class Blocked(IntEnum):
    """What kept a request from getting (more) tokens in this step."""

    NOTHING = 0
    TOKENS = 1  # the step's token budget is used up
    SEQUENCES = 2  # max_num_seqs, or no free row
    PARTIAL_PREFILLS = 3  # it would be one prompt too many that is partly computed
    MEMORY = 4  # its whole prompt does not fit beyond the headroom
    ELSEWHERE = 5  # another replica is the better place, or the only one it fits
    DRAINING = 6  # the replica starts nothing


@dataclass(frozen=True, slots=True)
class Grant:
    """The step's answer: tokens granted (0 if blocked)."""

    num_tokens: int
    blocked: Blocked = Blocked.NOTHING


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """The decodes in a step, a column entry each; a promise of 0 is none."""

    tenant_index: npt.NDArray[np.int32]
    context_tokens: npt.NDArray[np.int32]  # in the KV cache before the step
    num_output_tokens: npt.NDArray[np.int32]  # delivered so far
    ttft_deadline_ns: npt.NDArray[np.int64]
    itl_cap_ns: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """A replica as an admission test sees it."""

    num_blocks: int
    num_available_blocks: int  # free + evictable
    num_running: int


class Step(Protocol):
    """A step of one replica in the making: the policy's view and its verbs."""

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

    def preempt(self, request: Request) -> None:
        """Take back the memory of a running request; it returns to its place in the queue."""
        ...

    def shed(self, request: Request, rejection: Rejection) -> None:
        """Refuse a waiting `request` that cannot be served as promised."""
        ...

    def missing_blocks(self, request: Request) -> int:
        """Return how many blocks must be freed, besides fenced ones, before `request` fits."""
        ...


class Policy(Protocol):
    """Every choice between requests."""

    def place(self, request: Request) -> tuple[int, ...]:
        """Return where `request` stands in a total order that never changes, for equal need."""
        ...

    def add(self, request: Request) -> None:
        """Let `request` wait: it is new, or returns to its place after a preemption or a crash."""
        ...

    def remove(self, request: Request) -> None:
        """Forget a waiting `request`: it was started, or it ended."""
        ...

    def fill(self, step: Step) -> None:
        """Hand out what the decodes leave of `step`."""
        ...

    def victim(self, candidates: Sequence[Request], beneficiary: Request) -> Request | None:
        """Return who gives memory back so that the running `beneficiary` can grow, itself included.

        None: nobody; it waits for memory. Victims must be lower in a total order, so that no two
        requests can preempt each other in turn.
        """
        ...

    def headroom_blocks(self, request: Request, load: ReplicaLoad) -> int:
        """Return how many blocks must stay available when `request` starts."""
        ...

    def check_integrity(self) -> None:
        """Assert that the waiting order is whole."""
        ...
