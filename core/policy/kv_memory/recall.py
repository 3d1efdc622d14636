"""When running requests give memory back, and to whom.

Owns: the mark below which droppable work gives way, who of what runs is called back for a waiting
request, and what became of each preemption. Never knows: whom of several to choose (`preemption`),
how much must stay free.

    pool below its mark        one droppable request gives way, before others must wait
    a waiting request lacks    for its reserve whoever is lower; else, as far as work may be thrown
    memory                     away, what runs only because it can be dropped, or is ahead
    a running one cannot grow  whoever is lower, itself if nobody is
"""

from collections.abc import Sequence
from math import ceil

from core.policy.base import Preemption, ReplicaLoad, Step
from core.policy.kv_memory.caution import Caution
from core.policy.kv_memory.growth import Growth
from core.policy.kv_memory.preemption import RANKS, Leads, Need, Victims
from core.policy.kv_memory.restore_cost import RestoreCosts
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.tenancy.classes import NUM_CLASSES, TrafficClass

MAX_VICTIMS = 16  # that make room for one request, at the most


class Recall:
    """That on all replicas."""

    def __init__(
        self,
        settings: PolicySettings,
        leads: Leads,
        growth: Growth,
        caution: Caution,
        costs: RestoreCosts,
    ) -> None:
        """Start with nothing running."""
        self._block_size = settings.block_size
        self._low_fraction = settings.tuning.preempt_below_fraction
        self._leads = leads
        self._growth = growth
        self._caution = caution
        self._victims = Victims(settings, leads, costs)
        self._backfillers: set[Request] = set()  # that run because they can be dropped for a claim
        self._given: list[Preemption] = []  # in this step
        self._now_ns = 0
        self.configure(settings.limits)

    def configure(self, limits: Limits) -> None:
        """Take over which classes can be preempted."""
        self._is_preemptible = [limits.of(each).preemptible for each in TrafficClass]
        self._victims.configure(limits)

    def started(self, request: Request, *, is_behind_claim: bool) -> None:
        """Take in that `request` has a row."""
        if is_behind_claim:
            self._backfillers.add(request)
        self._victims.started(request, self._now_ns)

    def stopped(self, request: Request) -> None:
        """Take in that `request` has lost its row."""
        self._victims.stopped(request)
        self._backfillers.discard(request)

    def is_droppable(self, request: Request) -> bool:
        """Tell whether `request` may hold what is lent: it can be preempted at any time."""
        return self._victims.is_droppable(request)

    def open(self, step: Step, load: ReplicaLoad) -> None:
        """Begin a step; where the pool is below its mark droppable work gives way."""
        self._now_ns = step.now_ns
        low_mark = ceil(self._low_fraction * load.num_blocks)
        coming = load.num_available_blocks + load.num_fenced_blocks
        if coming < low_mark and load.rows is not None:
            self._drop(step, load, low_mark - coming)

    def close(self, step: Step) -> None:
        """End a step: see what its preemptions have cost."""
        if self._given:
            load = step.load()
            for given in self._given:
                self._settle(given, load)
            self._given.clear()

    def has_lower_class(self, request: Request, load: ReplicaLoad) -> bool:
        """Tell whether anybody who runs is of a lower class than `request`."""
        by_class = self._growth.holdings(load).by_class
        rank = RANKS[request.traffic_class]
        return any(by_class[other] and RANKS[other] < rank for other in range(NUM_CLASSES))

    def givers(
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

    def call_back(
        self, step: Step, request: Request, givers: list[Request], *, is_owed: bool
    ) -> None:
        """Preempt `givers` until a waiting `request` fits, or nobody is left who may be."""
        load = step.load()
        for _ in range(MAX_VICTIMS):
            missing = step.missing_blocks(request)
            if missing <= 0:
                return
            need = Need(request, missing, load, step.now_ns, is_whole=True, is_owed=is_owed)
            chosen = self._victims.choose(givers, need)
            if chosen is None:
                return
            givers.remove(chosen.request)
            self._preempt(step, chosen)

    def victim(
        self, candidates: Sequence[Request], beneficiary: Request, load: ReplicaLoad
    ) -> Preemption | None:
        """Return who gives memory back so that the running `beneficiary` can grow.

        If nobody is lower it is the beneficiary itself; if all that are lower have just come back,
        it waits for them.
        """
        if load.rows is None:
            return None
        num_blocks = max(1, ceil(self._low_fraction * load.num_blocks))
        need = Need(beneficiary, num_blocks, load, self._now_ns)
        chosen = self._victims.choose(candidates, need)
        if chosen is None and not self._victims.lower(candidates, beneficiary):
            chosen = Preemption(beneficiary) if beneficiary in candidates else None
        if chosen is not None:
            self._growth.look_again(load.replica)
            self._given.append(chosen)
        return chosen

    def _drop(self, step: Step, load: ReplicaLoad, num_blocks: int) -> None:
        """Let one droppable request give way, if there is anybody of a higher class."""
        by_class = self._growth.holdings(load).by_class
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
        self._growth.look_again(step.replica)
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
