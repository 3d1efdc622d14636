"""Who may have KV memory.

Owns: admission by what the running requests will hold at the most (`future_peak`), and the claim of
a request that does not fit. Never knows: blocks, rows, who is served next, what is foreseen of each
request (`growth`), who gives memory back (`recall`), when a class lends its reserve (`reserves`).

    may start   ⇔   peak ≤ capacity − headroom − Σ over other classes (reserved − held)⁺

Nobody is lent the headroom. A request within the reserve of its own class needs no peak: what runs
there has no right to grow into it. Nor has droppable work a right to grow at the expense of higher
classes: what it holds counts for them, what it may come to hold does not, as long as work may be
thrown away or the class has memory reserved.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from core.policy.base import Blocked, Preemption, ReplicaLoad, Step
from core.policy.cost_model import CostModel
from core.policy.kv_memory.caution import Caution
from core.policy.kv_memory.growth import Growth, StartNeed, held_blocks
from core.policy.kv_memory.preemption import Leads
from core.policy.kv_memory.recall import Recall
from core.policy.kv_memory.reserves import Reserves
from core.policy.kv_memory.restore_cost import RestoreCosts
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request
from core.tenancy.classes import TrafficClass

LOOK_EVERY = 8  # steps; in between a peak stays what it was while all grow as foreseen


class Demand(NamedTuple):
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
        self._growth = Growth(settings)
        self._costs = RestoreCosts(settings, model)
        self._caution = Caution(settings.tuning.max_preempted_fraction)
        self._recall = Recall(settings, leads, self._growth, self._caution, self._costs)
        self._reserves = Reserves(settings.limits)
        self._claims: dict[int, Request] = {}  # by replica: who lacks memory first in this step
        self._pool_tokens = 0  # of the replica whose step is open
        self._now_ns = 0
        self.configure(settings.limits)

    def configure(self, limits: Limits) -> None:
        """Take over quantiles and reserves from now on."""
        self._is_preemptible = [limits.of(each).preemptible for each in TrafficClass]
        self._growth.configure(limits)
        self._recall.configure(limits)
        self._reserves.configure(limits)

    def calibrate(self, replica: int, model: CostModel) -> None:
        """Let `model` tell what recomputing costs on `replica`."""
        self._costs.calibrate(replica, model)

    def started(self, request: Request) -> None:
        """Take in that `request` has a row."""
        claimant = self._claims.get(request.replica, request)
        self._growth.started(request)
        self._recall.started(request, is_behind_claim=claimant is not request)
        self._reserves.wanted(request.traffic_class, self._now_ns)

    def stopped(self, request: Request) -> None:
        """Take in that `request` has lost its row."""
        self._growth.stopped(request)
        self._recall.stopped(request)

    def ended(self, request: Request) -> None:
        """Learn how long outputs are."""
        self._growth.ended(request)

    def forget_tenant(self, index: int) -> None:
        """Let the next tenant of this index have no history."""
        self._growth.forget_tenant(index)

    def open(self, step: Step) -> None:
        """Begin a step: nobody has a claim; droppable work gives way before others must wait."""
        self._now_ns = step.now_ns
        self._claims.pop(step.replica, None)
        if step.number % LOOK_EVERY == 0:
            self._growth.look_again(step.replica)
        load = step.load()
        self._pool_tokens = load.num_blocks * self._block_size
        self._recall.open(step, load)

    def close(self, step: Step, num_tokens: int) -> None:
        """Take in that `step` computes so many tokens."""
        self._recall.close(step)
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
        need = self._growth.start_need(request)
        if self._reserve_takes(request, need, load):
            return Demand(reserve=self._kept_from(request, load, is_droppable=True))
        claimant = self._claims.get(load.replica, request)
        if claimant is not request and not self._caution.has_credit:
            return Demand(headroom=load.num_blocks)  # it could not be dropped again
        if request.num_preemptions:
            mark = ceil(self._settings.tuning.readmit_above_fraction * load.num_blocks)
            headroom = max(headroom, mark)
        kept = self._kept_from(request, load, is_droppable=self._recall.is_droppable(request))
        return Demand(self._growth_beside(request, need, load, kept + headroom), kept, headroom)

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
        if load.rows is None or not self._recall.has_lower_class(request, load):
            return False
        is_owed = self._is_within_reserve(request, load)
        givers = self._recall.givers(request, step.running(), is_owed=is_owed)
        gained = sum(int(load.rows.num_blocks[giver.row]) for giver in givers)
        if len(givers) == load.num_running:  # on an empty replica nothing need stay available
            gained += self.headroom_blocks(request, load)
        if not 0 < step.missing_blocks(request) <= gained:
            return False
        self._recall.call_back(step, request, givers, is_owed=is_owed)
        return True

    def victim(
        self, candidates: Sequence[Request], beneficiary: Request, load: ReplicaLoad
    ) -> Preemption | None:
        """Return who gives memory back so that the running `beneficiary` can grow."""
        return self._recall.victim(candidates, beneficiary, load)

    def blocked(self, step: Step, request: Request) -> Blocked:
        """Return what keeps a waiting `request` from starting, after it was tried: blocks, or that
        those which run could not grow any more.
        """
        load = step.load()
        kept = self.headroom_blocks(request, load)
        fits = step.missing_blocks(request) + load.num_fenced_blocks <= kept
        return Blocked.HEADROOM if fits else Blocked.MEMORY

    def _growth_beside(
        self, request: Request, need: StartNeed, load: ReplicaLoad, num_kept: int
    ) -> int:
        """Return how many blocks are kept for what runs to grow, `request` among it.

        If it fits, with `num_kept` blocks free, whoever ends when, there is no peak to work out.
        """
        holdings = self._growth.holdings(load)
        held = request.num_tokens + self._block_size // 2
        most = self._blocks_to_come(holdings.most + need.num_tokens + held, need, load)
        if need.num_blocks + most + num_kept <= load.num_available_blocks:
            return most
        ignores_lent = self._ignores_growth_of_lent(request)
        peak_with = holdings.firm_peak_with if ignores_lent else holdings.peak_with
        return self._blocks_to_come(peak_with(need.num_tokens, held), need, load)

    def _blocks_to_come(self, num_tokens: int, need: StartNeed, load: ReplicaLoad) -> int:
        """Return how many blocks more than now, and than one starts with that has such a need, are
        kept for `num_tokens` in all.
        """
        growth = ceil(num_tokens / self._block_size) - held_blocks(load) - need.num_blocks
        return ceil(max(0, growth) * self._caution.factor)

    def _ignores_growth_of_lent(self, request: Request) -> bool:
        """Tell whether lent work will give way to `request` instead of growing."""
        if self._is_preemptible[request.traffic_class]:
            return False
        return self._caution.has_credit or self._reserves.has_any(request.traffic_class)

    def _is_within_reserve(self, request: Request, load: ReplicaLoad) -> bool:
        return self._reserve_takes(request, self._growth.start_need(request), load)

    def _reserve_takes(self, request: Request, need: StartNeed, load: ReplicaLoad) -> bool:
        """Tell whether its class has reserved what `request` starts with and grows by."""
        if not self._reserves.has_any(request.traffic_class):
            return False
        wanted = need.num_blocks + -(-need.num_tokens // self._block_size)
        by_class = self._growth.holdings(load).by_class
        return self._reserves.takes(request.traffic_class, wanted, by_class, load.num_blocks)

    def _kept_from(self, request: Request, load: ReplicaLoad, *, is_droppable: bool) -> int:
        """Return the blocks that other classes reserve, do not hold, and do not lend."""
        return self._reserves.kept_from(
            request.traffic_class,
            self._growth.holdings(load).by_class,
            load.num_blocks,
            self._now_ns,
            is_droppable=is_droppable,
            is_preemptible=self._growth.may_be_preempted(request),
        )
