"""What was decided about requests under pressure, and by which two numbers.

Owns: the last decisions, numbered from 0 since the start, and their words. Never knows: who
decides, or who reads. A reader that names the number it wants next sees by the first one it gets
how many it has missed.

    kind      reason                         measured                      threshold
    QUEUE     the constraint (`Blocked`)     blocks for it and headroom    blocks available
    REJECT    `RejectionReason`, at arrival  as in the rejection           as in the rejection
    SHED      the same, while it waited      as in the rejection           as in the rejection
    EXPIRE    the same                       as in the rejection           as in the rejection
    FAULT     the same                       as in the rejection           as in the rejection
    DEMOTE    its class before               prompt tokens                 the cap of that class
    ROUTE     "here" or "elsewhere"          predicted cost on `replica`   least cost on another one
    PREEMPT   `PreemptionCause`              blocks given back             blocks available before
    SWAP      the same                       blocks given back             blocks available before
    SHORTEN   the same                       blocks given back             blocks available before
    RESTORE   how it was preempted           tokens that it has kept       tokens that it had
    EPOCH     what became of the executor    its epoch                     its KV blocks
    PRICES    "epoch"                        that of the new prices        that of the old ones
"""

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

from core.request import Request

MAX_DECISIONS = 4096


class DecisionKind(IntEnum):
    """What became of a request, of a replica, or of all charges."""

    QUEUE = 0
    REJECT = 1
    SHED = 2
    EXPIRE = 3
    FAULT = 4
    DEMOTE = 5
    ROUTE = 6
    PREEMPT = 7
    SWAP = 8
    SHORTEN = 9
    RESTORE = 10
    EPOCH = 11
    PRICES = 12

    @property
    def label(self) -> str:
        """The word that commands and metrics show."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision; what is not about a request has its id 0 and no tenant."""

    number: int
    kind: DecisionKind
    now_ns: int
    request_id: int
    tenant: str
    traffic_class: str
    replica: int  # -1 = none
    reason: str
    measured: float
    threshold: float


class DecisionLog:
    """The last `max_decisions` decisions."""

    def __init__(self, max_decisions: int = MAX_DECISIONS) -> None:
        """Start with none."""
        self.num_decisions = 0  # since the start, kept or not
        self._kept: deque[Decision] = deque(maxlen=max_decisions)

    def note(
        self,
        kind: DecisionKind,
        now_ns: int,
        request: Request | None = None,
        *,
        replica: int = -1,
        reason: str = "",
        measured: float = 0.0,
        threshold: float = 0.0,
    ) -> None:
        """Keep one decision, instead of the oldest if there is no room."""
        self._kept.append(
            Decision(
                self.num_decisions,
                kind,
                now_ns,
                0 if request is None else request.request_id,
                "" if request is None else request.tenant,
                "" if request is None else request.traffic_class.label,
                replica,
                reason,
                float(measured),
                float(threshold),
            )
        )
        self.num_decisions += 1

    def about(self, request_id: int) -> list[Decision]:
        """Return the decisions about one request that are still kept, oldest first."""
        return [each for each in self._kept if each.tenant and each.request_id == request_id]

    def since(self, number: int, limit: int) -> list[Decision]:
        """Return up to `limit` decisions from `number` on that are still kept, oldest first."""
        first = self.num_decisions - len(self._kept)
        start = max(0, number - first)
        return list(islice(self._kept, start, start + max(0, limit)))
