"""Who may have KV memory, and when others give theirs back for it.

Owns: admission by what the running requests will hold at the most (`future_peak`), the claim of a
request that does not fit, and the marks between which the pool is kept. Never knows: blocks, rows,
who is served next, whom to choose as a victim, when a class lends its reserve (`reserves`).

    may start   ⇔   peak ≤ capacity − headroom − Σ over other classes (reserved − held)⁺

Nobody is lent the headroom. A request within the reserve of its own class needs no peak: what runs
there has no right to grow into it. Nor has droppable work a right to grow at the expense of higher
classes: what it holds counts for them, what it may come to hold does not, as long as work may be
thrown away or the class has memory reserved. A prefix that a new request shares with running ones
counts as if it were its own from the first of them that ends on, which is on the safe side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from core.policy.base import Blocked, Preemption, ReplicaLoad, Step
from core.policy.caution import Caution
from core.policy.cost_model import CostModel
from core.policy.holdings import Holdings
from core.policy.limits import Limits
from core.policy.output_history import OutputHistory
from core.policy.preemption import RANKS, Leads, Need, Victims
from core.policy.reserves import Reserves
from core.policy.restore_cost import RestoreCosts
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.tenancy import NUM_CLASSES, TrafficClass

MAX_VICTIMS = 16  # that make room for one request, at the most
LOOK_EVERY = 8  # steps; in between a peak stays what it was while all grow as foreseen
_WHOLE_OUTPUTS = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH)


@dataclass(frozen=True, slots=True)
class Demand:
    """What must stay available when a request starts, blocks, by what it is for."""

    growth: int = 0  # of those that run, and its own
    reserve: int = 0  # of other classes
    headroom: int = 0  # always

    @property
    def num_blocks(self) -> int:
        """All of it."""
        return self.growth + self.reserve + self.headroom


class Memory:
    """The KV memory of all replicas, as far as it is decided who gets it."""

    def __init__(
        self,
        settings: PolicySettings,
        leads: Leads,
        model: CostModel | None = None,
    ) -> None:
        """Start with nothing running."""
        self._settings = settings
        self._block_size = settings.block_size
        self._leads = leads
        self._history = OutputHistory(self._quantile_of)
        self._costs = RestoreCosts(settings, model)
        self._victims = Victims(settings, leads, self._costs)
        self._caution = Caution(settings.tuning.max_preempted_fraction)
        self._reserves = Reserves(settings.limits)
        self._holdings: dict[int, Holdings] = {}  # by replica, as far as somebody has asked
        self._rows: dict[Request, int] = {}  # of those that run
        self._claims: dict[int, Request] = {}  # by replica: who lacks memory first in this step
        self._backfillers: set[Request] = set()  # that run because they can be dropped for a claim
        self._undroppable: set[Request] = set()  # that run and were preempted as often as may be
        self._given: list[Preemption] = []  # in this step
        self._pool_tokens = 0  # of the replica whose step is open
        self._now_ns = 0
        self.configure(settings.limits)

    def configure(self, limits: Limits) -> None:
        """Take over quantiles and reserves from now on."""
        configs = [limits.of(each) for each in TrafficClass]
        self._quantiles = [config.output_quantile for config in configs]
        self._is_preemptible = [config.preemptible for config in configs]
        self._is_lent = _lent_classes(self._is_preemptible)
        self._reserves.configure(limits)
        self._history.tabulate()
        self._victims.configure(limits)
        self._holdings.clear()

    def calibrate(self, replica: int, model: CostModel) -> None:
        """Let `model` tell what recomputing costs on `replica`."""
        self._costs.calibrate(replica, model)

    def started(self, request: Request) -> None:
        """Take in that `request` has a row."""
        self._rows[request] = request.row
        if (holdings := self._holdings.get(request.replica)) is not None:
            self._join(holdings, request)
        if self._claims.get(request.replica, request) is not request:
            self._backfillers.add(request)
        if not self._may_be_preempted(request):
            self._undroppable.add(request)
        self._reserves.wanted(request.traffic_class, self._now_ns)
        self._victims.started(request, self._now_ns)

    def stopped(self, request: Request) -> None:
        """Take in that `request` has lost its row; what it shared must be looked at again."""
        row, holdings = self._rows.pop(request), self._holdings.get(request.replica)
        if holdings is not None and holdings.num_shared:
            del self._holdings[request.replica]
        elif holdings is not None:
            holdings.remove(row, request.traffic_class)
        self._victims.stopped(request)
        self._backfillers.discard(request)
        self._undroppable.discard(request)

    def ended(self, request: Request) -> None:
        """Remember how long its output was, if it came to its own end."""
        if request.status in _WHOLE_OUTPUTS:
            self._history.note(request.flow, request.num_output_tokens)

    def open(self, step: Step) -> None:
        """Begin a step: nobody has a claim; droppable work gives way before others must wait."""
        self._now_ns = step.now_ns
        self._claims.pop(step.replica, None)
        if step.number % LOOK_EVERY == 0:
            self._holdings.pop(step.replica, None)
        load = step.load()
        self._pool_tokens = load.num_blocks * self._block_size
        low_mark = ceil(self._settings.tuning.preempt_below_fraction * load.num_blocks)
        coming = load.num_available_blocks + load.num_fenced_blocks
        if coming < low_mark and load.rows is not None:
            self._drop(step, load, low_mark - coming)

    def close(self, step: Step, num_tokens: int) -> None:
        """Take in that `step` computes so many tokens."""
        if self._given:
            load = step.load()
            for given in self._given:
                self._settle(given, load)
            self._given.clear()
        self._caution.computed(num_tokens, self._pool_tokens)

    def headroom_blocks(self, request: Request, load: ReplicaLoad) -> int:
        """Return how many blocks must stay available when `request` starts."""
        return self.demand(request, load).num_blocks

    def demand(self, request: Request, load: ReplicaLoad) -> Demand:
        """Return what must stay available when `request` starts, and for what."""
        if load.num_running == 0:
            return Demand()
        headroom = ceil(self._settings.kv_headroom_fraction * load.num_blocks)
        if load.rows is None:
            return Demand(headroom=headroom)
        holdings = self._holdings_of(load)
        num_new, left = self._own_need(request)
        if self._reserve_takes(request, num_new, left, load):
            return Demand(reserve=self._kept_from(request, load, is_droppable=True))
        claimant = self._claims.get(load.replica, request)
        if claimant is not request and not self._caution.has_credit:
            return Demand(headroom=load.num_blocks)  # it could not be dropped again
        if request.num_preemptions:
            mark = ceil(self._settings.tuning.readmit_above_fraction * load.num_blocks)
            headroom = max(headroom, mark)
        kept = self._kept_from(request, load, is_droppable=self._victims.is_droppable(request))
        held = request.num_tokens + self._block_size // 2
        most = self._growth(holdings.most + left + held, num_new, load)
        if num_new + most + kept + headroom <= load.num_available_blocks:
            return Demand(most, kept, headroom)  # it fits, whoever ends when
        ignores_lent = self._ignores_growth_of_lent(request)
        peak_with = holdings.firm_peak_with if ignores_lent else holdings.peak_with
        return Demand(self._growth(peak_with(left, held), num_new, load), kept, headroom)

    def has_reserve(self, request: Request, load: ReplicaLoad) -> bool:
        """Tell whether what is reserved for its class takes `request`."""
        return load.rows is not None and self._is_within_reserve(request, load)

    def make_room(self, step: Step, request: Request) -> bool:
        """Let lower work give memory back for a waiting `request` that does not fit.

        True = it may be tried again. The first of a step has the claim on blocks to come: what
        starts behind it can be dropped for it.
        """
        self._claims.setdefault(step.replica, request)
        self._reserves.wanted(request.traffic_class, step.now_ns)
        load = step.load()
        if load.rows is None or not self._has_lower_class(request, load):
            return False
        missing = step.missing_blocks(request)
        is_owed = self._is_within_reserve(request, load)
        givers = self._givers(request, step.running(), is_owed=is_owed)
        gained = sum(int(load.rows.num_blocks[giver.row]) for giver in givers)
        if len(givers) == load.num_running:  # on an empty replica nothing need stay available
            gained += self.headroom_blocks(request, load)
        if not 0 < missing <= gained:
            return False
        for _ in range(MAX_VICTIMS):
            need = Need(request, missing, load, step.now_ns, is_whole=True, is_owed=is_owed)
            chosen = self._victims.choose(givers, need)
            if chosen is None:
                break
            givers.remove(chosen.request)
            self._preempt(step, chosen)
            missing = step.missing_blocks(request)
            if missing <= 0:
                break
        return True

    def victim(
        self, candidates: Sequence[Request], beneficiary: Request, load: ReplicaLoad
    ) -> Preemption | None:
        """Return who gives memory back so that the running `beneficiary` can grow.

        If nobody is lower it is the beneficiary itself; if all that are lower have just come back,
        it waits for them.
        """
        if load.rows is None:
            return None
        num_blocks = max(1, ceil(self._settings.tuning.preempt_below_fraction * load.num_blocks))
        need = Need(beneficiary, num_blocks, load, self._now_ns)
        chosen = self._victims.choose(candidates, need)
        if chosen is None and not self._victims.lower(candidates, beneficiary):
            chosen = Preemption(beneficiary) if beneficiary in candidates else None
        if chosen is not None:
            self._holdings.pop(load.replica, None)
            self._given.append(chosen)
        return chosen

    def blocked(self, step: Step, request: Request) -> Blocked:
        """Return what keeps a waiting `request` from starting, after it was tried: blocks, or that
        those which run could not grow any more.
        """
        load = step.load()
        kept = self.headroom_blocks(request, load)
        fits = step.missing_blocks(request) + load.num_fenced_blocks <= kept
        return Blocked.HEADROOM if fits else Blocked.MEMORY

    def _quantile_of(self, flow: int) -> float:
        return self._quantiles[flow % NUM_CLASSES]

    def _holdings_of(self, load: ReplicaLoad) -> Holdings:
        holdings = self._holdings.get(load.replica)
        if holdings is None:
            holdings = self._holdings[load.replica] = self._look(load)
        return holdings

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
            num_shared=max(0, sum(by_class) - _held_blocks(load)) * size,
            num_firm_shared=max(0, num_firm_blocks - _held_blocks(load)) * size,
        )

    def _growth(self, num_tokens: int, num_new: int, load: ReplicaLoad) -> int:
        """Return how many blocks more than now, and than the `num_new` of one that starts, are kept
        for `num_tokens` in all.
        """
        growth = ceil(num_tokens / self._block_size) - _held_blocks(load) - num_new
        return ceil(max(0, growth) * self._caution.factor)

    def _join(self, holdings: Holdings, request: Request) -> None:
        """Let `holdings` have one that has just started."""
        num_tokens, num_blocks = request.num_tokens, len(request.block_ids)
        ahead = max(0, (num_blocks - 1) * self._block_size + 1 - num_tokens)
        most = request.prompt_len + request.max_tokens - num_tokens
        left = self._history.left_of(request.flow, request.num_output_tokens, most)
        is_lent = self._is_lent[request.traffic_class] and self._may_be_preempted(request)
        holdings.add(
            request.row,
            request.traffic_class,
            held=num_tokens + ahead + self._block_size // 2,
            to_come=max(0, left - ahead),
            num_blocks=num_blocks,
            is_firm=not is_lent,
        )

    def _own_need(self, request: Request) -> tuple[int, int]:
        """Return the blocks that `request` starts with, and the tokens that it grows by."""
        most = request.prompt_len + request.max_tokens
        if not self._may_be_preempted(request):
            return -(-most // self._block_size), 0
        num_tokens, outputs = request.num_tokens, request.num_output_tokens
        left = self._history.left_of(request.flow, outputs, most - num_tokens)
        return -(-num_tokens // self._block_size), left

    def _may_be_preempted(self, request: Request) -> bool:
        return request.num_preemptions < self._settings.max_preemptions

    def _ignores_growth_of_lent(self, request: Request) -> bool:
        """Tell whether lent work will give way to `request` instead of growing."""
        if self._is_preemptible[request.traffic_class]:
            return False
        return self._caution.has_credit or self._reserves.has_any(request.traffic_class)

    def _is_within_reserve(self, request: Request, load: ReplicaLoad) -> bool:
        return self._reserve_takes(request, *self._own_need(request), load)

    def _reserve_takes(self, request: Request, num_new: int, left: int, load: ReplicaLoad) -> bool:
        """Tell whether its class has reserved what `request` starts with and grows by."""
        if not self._reserves.has_any(request.traffic_class):
            return False
        wanted = num_new + -(-left // self._block_size)
        by_class = self._holdings_of(load).by_class
        return self._reserves.takes(request.traffic_class, wanted, by_class, load.num_blocks)

    def _kept_from(self, request: Request, load: ReplicaLoad, *, is_droppable: bool) -> int:
        """Return the blocks that other classes reserve, do not hold, and do not lend."""
        return self._reserves.kept_from(
            request.traffic_class,
            self._holdings_of(load).by_class,
            load.num_blocks,
            self._now_ns,
            is_droppable=is_droppable,
            is_preemptible=self._may_be_preempted(request),
        )

    def _has_lower_class(self, request: Request, load: ReplicaLoad) -> bool:
        """Tell whether anybody who runs is of a lower class than `request`."""
        by_class = self._holdings_of(load).by_class
        rank = RANKS[request.traffic_class]
        return any(by_class[other] and RANKS[other] < rank for other in range(NUM_CLASSES))

    def _givers(
        self, request: Request, running: Sequence[Request], *, is_owed: bool
    ) -> list[Request]:
        """Return whose memory `request` may call back: for its reserve that of all lower classes,
        else, as far as work may be thrown away, that of droppable requests which backfill or whose
        class is ahead of its share by more than its window.
        """
        rank = RANKS[request.traffic_class]
        lower = [each for each in running if RANKS[each.traffic_class] < rank]
        if is_owed:
            return lower
        if not self._caution.has_credit:
            return []
        return [
            each
            for each in lower
            if self._victims.is_droppable(each)
            and (each in self._backfillers or not self._leads.is_class_within(each.traffic_class))
        ]

    def _drop(self, step: Step, load: ReplicaLoad, num_blocks: int) -> None:
        """Let one droppable request give way, if there is anybody of a higher class."""
        by_class = self._holdings_of(load).by_class
        if not any(held and by for held, by in zip(by_class, self._is_preemptible, strict=True)):
            return
        running = step.running()
        first = max(running, key=self._victims.standing, default=None)
        if first is None or self._victims.is_droppable(first):
            return
        need = Need(first, num_blocks, load, step.now_ns, only_droppable=True)
        chosen = self._victims.choose(running, need)
        if chosen is not None:
            self._preempt(step, chosen)

    def _preempt(self, step: Step, chosen: Preemption) -> None:
        self._holdings.pop(step.replica, None)
        self._given.append(chosen)
        step.preempt(chosen.request, chosen.relief, chosen.num_blocks)

    def _settle(self, given: Preemption, load: ReplicaLoad) -> None:
        """Look at what became of a preemption: not every wish for a tail or a copy could be met."""
        request = given.request
        if request.row >= 0:
            self._victims.shortened(request, load, self._now_ns)
            self._caution.preempted(given.num_blocks * self._block_size)
        elif request.status is not RequestStatus.SWAPPED:
            self._caution.preempted(request.num_computed_tokens)


def _held_blocks(load: ReplicaLoad) -> int:
    """Return the blocks of those that run, each counted once."""
    return load.num_blocks - load.num_available_blocks - load.num_fenced_blocks


def _lent_classes(is_preemptible: Sequence[bool]) -> npt.NDArray[np.bool_]:
    """Return which classes run on what is lent, by class: those that can be preempted and rank
    below all that cannot.
    """
    firm = [RANKS[c] for c, lent in enumerate(is_preemptible) if not lent]
    lowest = min(firm, default=0)
    return np.array([lent and RANKS[c] < lowest for c, lent in enumerate(is_preemptible)])
