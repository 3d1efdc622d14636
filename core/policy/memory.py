"""Who may have KV memory, and when others give theirs back for it.

Owns: admission by what the running requests will hold at the most (`future_peak`), the reserves of
classes and whom they are lent to, the claim of a request that does not fit, and the marks between
which the pool is kept. Never knows: blocks, rows, who is served next, whom to choose as a victim.

    may start   ⇔   peak ≤ capacity − headroom − Σ over other classes (reserved − held)⁺

Droppable work may use what other classes reserve, but not the reserve of a class that is served
strictly first, and not the headroom. A request within the reserve of its own class needs no peak:
what runs there has no right to grow into it. A prefix that a new request shares with running ones
counts as if it were its own from the first of them that ends on, which is on the safe side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from core.policy.base import Blocked, Preemption, ReplicaLoad, Step
from core.policy.caution import Caution
from core.policy.cost_model import CostModel
from core.policy.future_peak import FuturePeak
from core.policy.limits import Limits
from core.policy.output_history import OutputHistory
from core.policy.preemption import RANKS, Leads, Need, Victims
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


@dataclass(frozen=True, slots=True)
class _Holdings:
    """What runs on a replica, in sums."""

    peak: FuturePeak
    by_class: list[int]  # blocks


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
        self._holdings: dict[int, _Holdings] = {}  # by replica, until something starts or stops
        self._claims: dict[int, Request] = {}  # by replica: who lacks memory first in this step
        self._backfillers: set[Request] = set()  # that run because they can be dropped for a claim
        self._given: list[Preemption] = []  # in this step
        self._now_ns = 0
        self.configure(settings.limits)

    def configure(self, limits: Limits) -> None:
        """Take over quantiles and reserves from now on."""
        configs = [limits.of(each) for each in TrafficClass]
        self._quantiles = [config.output_quantile for config in configs]
        self._reserves = [config.reserved_kv_fraction for config in configs]
        self._is_strict = [config.strict_first for config in configs]
        self._is_preemptible = [config.preemptible for config in configs]
        self._history.tabulate()
        self._victims.configure(limits)
        self._holdings.clear()

    def calibrate(self, replica: int, model: CostModel) -> None:
        """Let `model` tell what recomputing costs on `replica`."""
        self._costs.calibrate(replica, model)

    def started(self, request: Request) -> None:
        """Take in that `request` has a row."""
        self._holdings.pop(request.replica, None)
        if self._claims.get(request.replica, request) is not request:
            self._backfillers.add(request)
        self._victims.started(request, self._now_ns)

    def stopped(self, request: Request) -> None:
        """Take in that `request` has lost its row."""
        self._holdings.pop(request.replica, None)
        self._victims.stopped(request)
        self._backfillers.discard(request)

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
        low_mark = ceil(self._settings.tuning.preempt_below_fraction * load.num_blocks)
        coming = load.num_available_blocks + load.num_fenced_blocks
        if coming < low_mark and load.rows is not None:
            self._drop(step, load, low_mark - coming)

    def close(self, step: Step, num_tokens: int) -> None:
        """Take in that `step` computes so many tokens."""
        load = step.load()
        for given in self._given:
            self._settle(given, load)
        self._given.clear()
        self._caution.computed(num_tokens, load.num_blocks * self._block_size)

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
        if self._is_within_reserve(request, num_new, left, holdings, load):
            return Demand(reserve=self._kept_for_others(request, holdings, load, strict_only=True))
        claimant = self._claims.get(load.replica, request)
        if claimant is not request and not self._caution.has_credit:
            return Demand(headroom=load.num_blocks)  # it could not be dropped again
        peak = holdings.peak.peak_with(left, request.num_tokens + self._block_size // 2)
        growth = ceil(peak / self._block_size) - _held_blocks(load) - num_new
        growth = ceil(max(0, growth) * self._caution.factor)
        if request.num_preemptions:
            mark = ceil(self._settings.tuning.readmit_above_fraction * load.num_blocks)
            headroom = max(headroom, mark)
        is_lent = self._victims.is_droppable(request)
        kept = self._kept_for_others(request, holdings, load, strict_only=is_lent)
        return Demand(growth, kept, headroom)

    def has_reserve(self, request: Request, load: ReplicaLoad) -> bool:
        """Tell whether what is reserved for its class takes `request`."""
        if load.rows is None:
            return False
        num_new, left = self._own_need(request)
        return self._is_within_reserve(request, num_new, left, self._holdings_of(load), load)

    def make_room(self, step: Step, request: Request) -> bool:
        """Let lower work give memory back for a waiting `request` that does not fit.

        True = it may be tried again. The first of a step has the claim on blocks to come: what
        starts behind it can be dropped for it.
        """
        self._claims.setdefault(step.replica, request)
        load = step.load()
        if load.rows is None or not self._has_lower_class(request, load):
            return False
        missing = step.missing_blocks(request)
        givers = self._givers(request, step.running(), load)
        if not 0 < missing <= sum(int(load.rows.num_blocks[giver.row]) for giver in givers):
            return False
        for _ in range(MAX_VICTIMS):
            need = Need(request, missing, load, step.now_ns, is_whole=True)
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

    def _holdings_of(self, load: ReplicaLoad) -> _Holdings:
        holdings = self._holdings.get(load.replica)
        if holdings is None:
            holdings = self._holdings[load.replica] = self._look(load)
        return holdings

    def _look(self, load: ReplicaLoad) -> _Holdings:
        """Sum up what runs; blocks that a row holds beyond its tokens are tokens to come."""
        rows, size = load.rows, self._block_size
        assert rows is not None
        active = np.flatnonzero(rows.active)
        num_tokens, num_blocks = rows.num_tokens[active], rows.num_blocks[active]
        classes = rows.traffic_class[active]
        flows = rows.tenant_index[active] * NUM_CLASSES + classes
        outputs = num_tokens - rows.prompt_len[active]
        left = self._history.left(flows, outputs, rows.max_length[active] - num_tokens)
        ahead = np.maximum((num_blocks - 1) * size + 1 - num_tokens, 0)
        held = num_tokens + ahead + size // 2
        num_shared = max(0, int(num_blocks.sum()) - _held_blocks(load)) * size
        by_class = np.bincount(classes, num_blocks, NUM_CLASSES).astype(np.int64).tolist()
        peak = FuturePeak(np.maximum(left - ahead, 0), held, num_shared)
        return _Holdings(peak, by_class)

    def _own_need(self, request: Request) -> tuple[int, int]:
        """Return the blocks that `request` starts with, and the tokens that it grows by."""
        most = request.prompt_len + request.max_tokens
        if request.num_preemptions >= self._settings.max_preemptions:
            return -(-most // self._block_size), 0
        num_tokens, outputs = request.num_tokens, request.num_output_tokens
        left = self._history.left_of(request.flow, outputs, most - num_tokens)
        return -(-num_tokens // self._block_size), left

    def _reserved(self, traffic_class: int, load: ReplicaLoad) -> int:
        return int(self._reserves[traffic_class] * load.num_blocks)

    def _is_within_reserve(
        self, request: Request, num_new: int, left: int, holdings: _Holdings, load: ReplicaLoad
    ) -> bool:
        reserved = self._reserved(request.traffic_class, load)
        if not reserved:
            return False
        wanted = num_new + -(-left // self._block_size)
        return holdings.by_class[request.traffic_class] + wanted <= reserved

    def _kept_for_others(
        self, request: Request, holdings: _Holdings, load: ReplicaLoad, *, strict_only: bool
    ) -> int:
        """Return the blocks that other classes reserve and do not hold."""
        return sum(
            max(0, self._reserved(other, load) - holdings.by_class[other])
            for other in range(NUM_CLASSES)
            if other != request.traffic_class and (self._is_strict[other] or not strict_only)
        )

    def _has_lower_class(self, request: Request, load: ReplicaLoad) -> bool:
        """Tell whether anybody who runs is of a lower class than `request`."""
        by_class = self._holdings_of(load).by_class
        rank = RANKS[request.traffic_class]
        return any(by_class[other] and RANKS[other] < rank for other in range(NUM_CLASSES))

    def _givers(
        self, request: Request, running: Sequence[Request], load: ReplicaLoad
    ) -> list[Request]:
        """Return whose memory `request` may call back: for its reserve that of all lower classes,
        else, as far as work may be thrown away, that of droppable requests which backfill or whose
        class is ahead of its share by more than its window.
        """
        rank = RANKS[request.traffic_class]
        lower = [each for each in running if RANKS[each.traffic_class] < rank]
        num_new, left = self._own_need(request)
        if self._is_within_reserve(request, num_new, left, self._holdings_of(load), load):
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
