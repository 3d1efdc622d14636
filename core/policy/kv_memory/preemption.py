"""Which running request gives memory back for another, and how it comes back.

Owns: the total order of running requests, what a loss would cost each of them, and the rules that
keep preemptions from becoming a storm. Never knows: when memory is short, or for how much.

A victim is strictly lower than the beneficiary in (class, over-share, admission), so at no moment
can two requests preempt each other in turn. Of the lowest class that has a candidate, the one is
taken whose work is restored at the least cost for each block needed: it gives everything, copied or
to be computed again, or only as much of its tail as is wanted.

Between two preemptions a request makes some progress, in tokens or time, except that a higher class
may call back at any moment what a droppable one was lent, and anybody what is reserved for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_MS
from core.policy.base import Preemption, Relief, ReplicaLoad
from core.policy.kv_memory.restore_cost import RestoreCosts
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request
from core.tenancy.classes import NUM_CLASSES, TrafficClass

RANKS = (2, 1, 0, 3)  # by TrafficClass: batch gives first, administrative last
MIN_WHOLE_TO_TAIL = 2  # who holds no more than so many times what is needed gives everything


class Leads(Protocol):
    """Who was served more than its share."""

    def over_share(self, flow: int) -> int:
        """Return how much more than the least served of its class a flow was served."""
        ...

    def is_class_within(self, traffic_class: int) -> bool:
        """Tell whether a class is ahead of the least served one by no more than its window."""
        ...


@dataclass(frozen=True, slots=True)
class Need:
    """For whom memory is wanted, and how much."""

    beneficiary: Request
    num_blocks: int
    load: ReplicaLoad
    now_ns: int
    only_droppable: bool = False  # nobody else gives
    is_owed: bool = False  # it is reserved for the beneficiary
    is_whole: bool = False  # a tail would not do: it is needed again, and counts in the peak


class Victims:
    """The running requests of all replicas, as candidates for giving memory back."""

    def __init__(self, settings: PolicySettings, leads: Leads, costs: RestoreCosts) -> None:
        """Start with nobody running."""
        self._settings = settings
        self._leads = leads
        self._costs = costs
        self._resumed: dict[Request, tuple[int, int]] = {}  # since when it runs again: tokens, ns
        self.configure(settings.limits)

    def configure(self, limits: Limits) -> None:
        """Let other classes be preemptible from now on."""
        self._is_preemptible = [limits.of(each).preemptible for each in TrafficClass]

    def started(self, request: Request, now_ns: int) -> None:
        """Note that `request` has a row; one that was preempted gets some progress first."""
        if request.num_preemptions:
            self._resumed[request] = (request.num_tokens, now_ns)

    def shortened(self, request: Request, load: ReplicaLoad, now_ns: int) -> None:
        """Note that `request` gave its tail; once it has its blocks again it gets some progress."""
        if load.rows is not None:
            self._resumed[request] = (int(load.rows.num_tokens[request.row]), now_ns)

    def stopped(self, request: Request) -> None:
        """Forget it."""
        self._resumed.pop(request, None)

    def is_droppable(self, request: Request) -> bool:
        """Tell whether `request` may hold what is lent: it can be preempted at any time."""
        allowed = request.num_preemptions < self._settings.max_preemptions
        return allowed and self._is_preemptible[request.traffic_class]

    def standing(self, request: Request) -> tuple[int, int, int]:
        """Return the place of `request` in the total order; who is lower gives to who is higher."""
        return (RANKS[request.traffic_class], -self._leads.over_share(request.flow), -request.order)

    def choose(self, candidates: Sequence[Request], need: Need) -> Preemption | None:
        """Return who gives memory back; None: nobody who is lower."""
        lower = self.lower(candidates, need.beneficiary)
        free = [request for request in lower if self._may_lose(request, need)]
        if not free:
            return None
        lowest = min(RANKS[request.traffic_class] for request in free)
        chosen = [request for request in free if RANKS[request.traffic_class] == lowest]
        return self._cheapest(chosen, need)

    def lower(self, candidates: Sequence[Request], beneficiary: Request) -> list[Request]:
        """Return those of `candidates` that are strictly lower than `beneficiary`."""
        flows = {request.flow for request in candidates}
        shares = {
            flow: (RANKS[flow % NUM_CLASSES], -self._leads.over_share(flow)) for flow in flows
        }
        standing = self.standing(beneficiary)
        share, order = standing[:2], beneficiary.order
        return [
            request
            for request in candidates
            if (its := shares[request.flow]) < share or (its == share and request.order > order)
        ]

    def has_progressed(self, request: Request, load: ReplicaLoad, now_ns: int) -> bool:
        """Tell whether a running `request` had its progress since it was preempted last, or is
        still short of blocks and cannot go on anyway.
        """
        since, rows = self._resumed.get(request), load.rows
        if since is None or rows is None:
            return True
        num_tokens, tuning = int(rows.num_tokens[request.row]), self._settings.tuning
        return (
            int(rows.num_blocks[request.row]) * self._settings.block_size < num_tokens
            or num_tokens - since[0] >= tuning.progress_tokens
            or now_ns - since[1] >= tuning.progress_ms * NS_PER_MS
        )

    def _may_lose(self, request: Request, need: Need) -> bool:
        is_droppable = self.is_droppable(request)
        if need.only_droppable and not is_droppable:
            return False
        is_called_back = (
            is_droppable and RANKS[request.traffic_class] < RANKS[need.beneficiary.traffic_class]
        )
        return (
            is_called_back or need.is_owed or self.has_progressed(request, need.load, need.now_ns)
        )

    def _cheapest(self, candidates: list[Request], need: Need) -> Preemption:
        """Return whose restoring costs least for each block that is needed."""
        rows, load = need.load.rows, need.load
        assert rows is not None
        indexes = np.array([request.row for request in candidates])
        computed, held = rows.num_computed[indexes], rows.num_blocks[indexes]
        lost = np.where(self._gives_tail(candidates, held, need), need.num_blocks, held)
        kept_tokens = np.maximum(computed - lost * self._settings.block_size, 0)
        whole, kept = (
            self._costs.recompute(load.replica, tokens) for tokens in (computed, kept_tokens)
        )
        recompute, swap = whole - kept, self._costs.swap(load, computed, held)
        gained = np.maximum(np.minimum(held, need.num_blocks), 1)
        best = int((np.minimum(recompute, swap) / gained).argmin())
        if swap[best] < recompute[best]:
            return Preemption(candidates[best], Relief.SWAP)
        num_tail = int(lost[best]) if lost[best] < held[best] else 0
        return Preemption(candidates[best], Relief.RECOMPUTE, num_tail)

    def _gives_tail(
        self, candidates: list[Request], held: npt.NDArray[np.int32], need: Need
    ) -> npt.NDArray[np.bool_]:
        """Tell who gives only its tail: it is the smaller part, and it can be preempted again."""
        if need.is_whole:
            return np.zeros(len(candidates), np.bool_)
        last = self._settings.max_preemptions - 1
        again = np.array([request.num_preemptions < last for request in candidates])
        tails: npt.NDArray[np.bool_] = again & (held > MIN_WHOLE_TO_TAIL * need.num_blocks)
        return tails
