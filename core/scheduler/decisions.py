"""What was decided about requests under pressure, and by which two numbers.

Owns: the last decisions of each kind, numbered from 0 since the start, and their words. Never
knows: who decides, or who reads. A kind has room of its own, so that a flood of sheds does not push
out who was preempted last. A reader that names the number it wants next sees by the numbers it gets
what it has missed.

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
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, islice, takewhile
from operator import attrgetter

from core.request import Request

MAX_DECISIONS_OF_A_KIND = 1024


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


_number = attrgetter("number")


class DecisionLog:
    """The last `max_of_a_kind` decisions of each kind."""

    def __init__(self, max_of_a_kind: int = MAX_DECISIONS_OF_A_KIND) -> None:
        """Start with none."""
        self.num_decisions = 0  # since the start, kept or not
        self._kept: tuple[deque[Decision], ...] = tuple(
            deque(maxlen=max_of_a_kind) for _ in DecisionKind
        )

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
        """Keep one decision, instead of the oldest of its kind if there is no room."""
        self._kept[kind].append(
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
        kept = chain.from_iterable(self._kept)
        found = (each for each in kept if each.tenant and each.request_id == request_id)
        return sorted(found, key=_number)

    def since(self, number: int, limit: int, kind: DecisionKind | None = None) -> list[Decision]:
        """Return up to `limit` decisions from `number` on that are still kept, of one kind or all,
        oldest first.
        """
        found = (takewhile(lambda each: each.number >= number, log) for log in self._newest(kind))
        return sorted(chain.from_iterable(found), key=_number)[: max(0, limit)]

    def last(self, limit: int, kind: DecisionKind | None = None) -> list[Decision]:
        """Return the last `limit` decisions, of one kind or all, oldest first; of each kind some,
        however many others there have been since.
        """
        share = limit // len(DecisionKind) if kind is None else limit
        some = [each for log in self._newest(kind) for each in islice(log, share)]
        numbers = {each.number for each in some}
        newest = (islice(log, limit) for log in self._newest(kind))
        others = (each for each in chain.from_iterable(newest) if each.number not in numbers)
        rest = sorted(others, key=_number, reverse=True)[: max(0, limit - len(some))]
        return sorted(some + rest, key=_number)

    def _newest(self, kind: DecisionKind | None) -> Iterable[Iterable[Decision]]:
        """Return the decisions of each kind that is asked for, newest first."""
        return map(reversed, self._kept if kind is None else (self._kept[kind],))
