"""How much memory requests start with, hold, and will come to hold.

Owns: what is foreseen of each output (`output_history`), and with that what runs on each replica
(`holdings`), looked at anew now and then and kept in step while requests start and stop. Never
knows: how much there is for all, who may have it.

A request that can be preempted no more counts with all that it may ever use: it cannot give way.
A prefix that a new request shares with running ones counts as if it were its own from the first of
them that ends on, which is on the safe side.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from core.policy.base import ReplicaLoad
from core.policy.kv_memory.holdings import Holdings
from core.policy.kv_memory.output_history import OutputHistory
from core.policy.kv_memory.preemption import RANKS
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.tenancy.classes import NUM_CLASSES, TrafficClass

_WHOLE_OUTPUTS = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH)


class StartNeed(NamedTuple):
    """What a request takes when it starts."""

    num_blocks: int  # at once
    num_tokens: int  # that it grows by afterwards


class Growth:
    """That of all replicas."""

    def __init__(self, settings: PolicySettings) -> None:
        """Start with nothing running."""
        self._block_size = settings.block_size
        self._max_preemptions = settings.max_preemptions
        self._history = OutputHistory(self._quantile_of)
        self._holdings: dict[int, Holdings] = {}  # by replica, as far as somebody has asked
        self._rows: dict[Request, int] = {}  # of those that run
        self._undroppable: set[Request] = set()  # that run and were preempted as often as may be
        self.configure(settings.limits)

    def configure(self, limits: Limits) -> None:
        """Take over quantiles, and who can be preempted, from now on."""
        configs = [limits.of(each) for each in TrafficClass]
        self._quantiles = [config.output_quantile for config in configs]
        self._is_lent = _lent_classes([config.preemptible for config in configs])
        self._history.tabulate()
        self._holdings.clear()

    def started(self, request: Request) -> None:
        """Take in that `request` has a row."""
        self._rows[request] = request.row
        if (holdings := self._holdings.get(request.replica)) is not None:
            self._join(holdings, request)
        if not self.may_be_preempted(request):
            self._undroppable.add(request)

    def stopped(self, request: Request) -> None:
        """Take in that `request` has lost its row; what it shared must be looked at again."""
        row, holdings = self._rows.pop(request), self._holdings.get(request.replica)
        if holdings is not None and holdings.num_shared:
            self.look_again(request.replica)
        elif holdings is not None:
            holdings.remove(row, request.traffic_class)
        self._undroppable.discard(request)

    def ended(self, request: Request) -> None:
        """Remember how long its output was, if it came to its own end."""
        if request.status in _WHOLE_OUTPUTS:
            self._history.note(request.flow, request.num_output_tokens)

    def forget_tenant(self, index: int) -> None:
        """Let the next tenant of this index have no history."""
        for traffic_class in TrafficClass:
            self._history.forget(index * NUM_CLASSES + traffic_class)

    def holdings(self, load: ReplicaLoad) -> Holdings:
        """Return what runs on a replica whose rows are known."""
        holdings = self._holdings.get(load.replica)
        if holdings is None:
            holdings = self._holdings[load.replica] = self._look(load)
        return holdings

    def look_again(self, replica: int) -> None:
        """Look at all rows of a replica when somebody asks next: something has changed in them."""
        self._holdings.pop(replica, None)

    def start_need(self, request: Request) -> StartNeed:
        """Return what a waiting `request` takes."""
        most = request.max_length
        if not self.may_be_preempted(request):
            return StartNeed(-(-most // self._block_size), 0)
        num_tokens, outputs = request.num_tokens, request.num_output_tokens
        left = self._history.left_of(request.flow, outputs, most - num_tokens)
        return StartNeed(-(-num_tokens // self._block_size), left)

    def may_be_preempted(self, request: Request) -> bool:
        """Tell whether `request` was not preempted as often as may be."""
        return request.num_preemptions < self._max_preemptions

    def _quantile_of(self, flow: int) -> float:
        return self._quantiles[flow % NUM_CLASSES]

    def _look(self, load: ReplicaLoad) -> Holdings:
        """Sum up what runs; blocks that a row holds beyond its tokens are tokens to come."""
        rows, size = load.rows, self._block_size
        assert rows is not None
        num_tokens, classes = rows.num_tokens, rows.traffic_class
        num_blocks = rows.num_blocks * rows.active
        flows = rows.tenant_index * NUM_CLASSES + classes
        outputs = num_tokens - rows.prompt_len
        left = self._history.left(flows, outputs, rows.max_length - num_tokens)
        ahead = num_blocks * size
        ahead -= num_tokens + (size - 1)
        np.maximum(ahead, 0, out=ahead)
        by_class = [int(num) for num in np.bincount(classes, num_blocks, NUM_CLASSES).tolist()]
        is_firm = ~self._is_lent[classes]
        if self._undroppable:
            is_firm[[each.row for each in self._undroppable if each.replica == load.replica]] = True
        num_firm_blocks = int(num_blocks.sum(where=is_firm))
        return Holdings(
            held=(num_tokens + ahead + size // 2) * rows.active,
            to_come=np.maximum(left - ahead, 0) * rows.active,
            num_blocks=num_blocks,
            is_firm=is_firm,
            by_class=by_class,
            num_shared=max(0, sum(by_class) - held_blocks(load)) * size,
            num_firm_shared=max(0, num_firm_blocks - held_blocks(load)) * size,
        )

    def _join(self, holdings: Holdings, request: Request) -> None:
        """Let `holdings` have one that has just started."""
        num_tokens, num_blocks = request.num_tokens, len(request.block_ids)
        ahead = max(0, (num_blocks - 1) * self._block_size + 1 - num_tokens)
        most = request.max_length - num_tokens
        left = self._history.left_of(request.flow, request.num_output_tokens, most)
        is_lent = self._is_lent[request.traffic_class] and self.may_be_preempted(request)
        holdings.add(
            request.row,
            request.traffic_class,
            held=num_tokens + ahead + self._block_size // 2,
            to_come=max(0, left - ahead),
            num_blocks=num_blocks,
            is_firm=not is_lent,
        )


def held_blocks(load: ReplicaLoad) -> int:
    """Return the blocks of those that run, each counted once."""
    return load.num_blocks - load.num_available_blocks - load.num_fenced_blocks


def _lent_classes(is_preemptible: Sequence[bool]) -> npt.NDArray[np.bool_]:
    """Return which classes run on what is lent, by class: those that can be preempted and rank
    below all that cannot.
    """
    firm = [RANKS[c] for c, lent in enumerate(is_preemptible) if not lent]
    lowest = min(firm, default=0)
    return np.array([lent and RANKS[c] < lowest for c, lent in enumerate(is_preemptible)])
