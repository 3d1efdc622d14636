"""Headrace's policy: earliest deadline first inside a fairness window, per step, charged by what
really ran.

Owns: the order of the questions. Each answer is in a file of its own: `flows` (who waits),
`fair_queue` (who was served for its weight), `prices` (what it cost), `contenders` (whose turn),
`company` (which prompts wait, or keep their last token, to decode with others), `locality` (whose
prompt is in the cache), `pace` (how long the step may last), `memory` (whose KV fits), `gates` (the
hard limits of tenants and classes), `shedding` (who would wait in vain), `leftovers` (what a step
left unused, and why).
Never knows: blocks, rows, plans, clocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from core.errors import Rejection
from core.policy.base import (
    Accounts,
    Blocked,
    DecodeBatch,
    Grant,
    Policy,
    Prediction,
    Preemption,
    ReplicaLoad,
    Standing,
    Step,
    Wait,
    WaitingRoom,
)
from core.policy.calibration import CostModels
from core.policy.cost_model import CostBasis, CostModel
from core.policy.fairness.prices import PriceBook
from core.policy.fairness.shares import Shares
from core.policy.hard_limits.gates import Gates
from core.policy.hard_limits.lent_rows import LentRows
from core.policy.kv_memory.memory import Memory
from core.policy.kv_memory.preemption import RANKS
from core.policy.lateness.exemptions import Exemptions
from core.policy.lateness.shedding import Shedding
from core.policy.limits import Limits
from core.policy.pacing.company import Company
from core.policy.pacing.pace import Pace
from core.policy.pacing.step_budget import StepBudget
from core.policy.queues.flows import Flows, place
from core.policy.queues.place_queue import Place
from core.policy.settings import PolicySettings
from core.policy.turns.contenders import Contenders
from core.policy.turns.leftovers import Leftovers
from core.policy.turns.locality import Locality
from core.policy.turns.step_shares import StepShares
from core.request import Request, RequestStatus

# Not what expired: its client knew the time and had what came till then, as if it had cancelled.
REFUNDED = frozenset({RequestStatus.FINISHED_SHED, RequestStatus.FINISHED_ERROR})


class HeadracePolicy(Policy):
    """One set of flows for all replicas."""

    def __init__(self, settings: PolicySettings, model: CostModel | None = None) -> None:
        """Start with nobody waiting; until replicas bring a cost model, or `model` is one for all,
        steps are bounded by tokens alone.
        """
        self._settings = settings
        self._models = CostModels(model)
        self._flows = Flows()
        self._gates = Gates(settings)
        self._lent_rows = LentRows(self._flows, settings.max_num_seqs)
        self._pace = Pace(settings, self._models, self._flows)
        self._shares = Shares(settings, self._flows, PriceBook(settings.tuning, model))
        self._step_shares = StepShares(settings.limits, settings.tuning.tile_tokens)
        self._company = Company(settings.limits, settings.tuning.company_fraction)
        self._leftovers = Leftovers(self._flows, self._shares, settings.max_num_batched_tokens)
        self._memory = Memory(settings, self._shares, model)
        self._exemptions = Exemptions(settings.limits, self._flows)
        self._shedding = Shedding(
            settings, self._flows, self._shares, self._models, self._exemptions
        )
        self._shedding.protection.configure(self._company)
        self._locality = Locality(settings, self._flows, self._shedding.protection)
        self._just_left: Request | None = None  # the queue, protected; it may be about to start

    def configure(self, limits: Limits) -> None:
        """Take over the promises and caps from now on."""
        self._gates.configure(limits)
        self._shares.configure(limits)
        self._step_shares = StepShares(limits, self._settings.tuning.tile_tokens)
        self._company = Company(limits, self._settings.tuning.company_fraction)
        self._pace.configure(limits)
        self._memory.configure(limits)
        self._exemptions.configure(limits)
        self._shedding.protection.configure(self._company)

    def classify(self, request: Request) -> None:
        """Demote a request that its class does not take, if that is how it is configured."""
        self._gates.classify(request)

    def refusal(self, request: Request, now_ns: int) -> Rejection | None:
        """Return which hard limit keeps `request` out."""
        return self._gates.refusal(request, now_ns)

    def place(self, request: Request) -> Place:
        """Return where `request` stands among those of its class."""
        return (-RANKS[request.traffic_class], *place(request))

    def add(self, request: Request) -> None:
        """Let `request` wait at its place in its flow."""
        if self._flows.know(request):
            self._shares.resize()
        if not self._flows.num_waiting[request.flow]:
            self._shares.wake(request.flow)
        request.start_by_ns = request.start_by_ns or self._shedding.start_by_ns(request)
        self._flows.add(request)
        self._gates.add(request)
        self._shedding.add(request)

    def remove(self, request: Request) -> None:
        """Forget a waiting `request`."""
        self._just_left = request if self.is_protected(request) else None
        self._flows.remove(request)
        self._gates.remove(request)
        self._locality.removed(request)
        self._shedding.remove(request)

    def started(self, request: Request) -> None:
        """Count it as running."""
        if request is self._just_left:
            self._flows.sworn.add(request)
        self._flows.num_running[request.flow] += 1
        self._gates.started(request)
        self._shares.started(request)
        self._memory.started(request)
        self._shedding.started(request)

    def stopped(self, request: Request) -> None:
        """Count it as running no more."""
        self._flows.sworn.discard(request)
        self._flows.num_running[request.flow] -= 1
        self._gates.stopped(request)
        self._shares.stopped(request)
        self._memory.stopped(request)

    def shortened(self, request: Request) -> None:
        """Take back what this step was to cost it."""
        self._shares.shortened(request)

    def ended(self, request: Request, now_ns: int) -> None:
        """Learn how long outputs are, and who is refused; what came to nothing is not charged."""
        if request.status is RequestStatus.FINISHED_SHED:
            self._flows.refused(request, now_ns)
        if request.status in REFUNDED:
            self._shares.refund(request)
        self._gates.ended(request, now_ns)
        self._memory.ended(request)

    def forget_tenant(self, index: int) -> None:
        """Let the next tenant of this index begin like one that was never here."""
        self._flows.forget_tenant(index)
        self._shares.forget_tenant(index)
        self._gates.forget_tenant(index)
        self._memory.forget_tenant(index)
        self._exemptions.forget_tenant(index)
        self._shedding.forget_tenant(index)

    def fill(self, step: Step) -> None:
        """Charge the decodes, then grant to whose turn it is until nothing fits any more."""
        self._shedding.at_step(step)
        self._memory.open(step)
        budget = self._pace.open(step, step.decodes())
        decodes = step.decodes()  # without those that pause
        self._shares.follow_prices(self._models.typical(), step.now_ns)
        self._shares.charge_decodes(step.replica, decodes)
        contenders = self._contenders(step, decodes)
        if step.prefills() or self._flows.has_waiting():
            contenders.wait_for(self._company, budget.room())
        num_before = step.tokens_left
        ended = self._hand_out(step, budget, contenders)
        num_granted = num_before - step.tokens_left
        short_of = self._leftovers.note(step, contenders, ended)
        self._shedding.filled(step, num_granted, short_of)
        self._memory.close(step, len(step.decodes().rows) + num_granted)
        self._shares.close(step, contenders.flows_under_way())

    def _contenders(self, step: Step, decodes: DecodeBatch) -> Contenders:
        """Collect who could be served, within the limits of classes and tenants."""
        capacity = self._leftovers.capacity(step.replica)
        tokens = self._step_shares.open(decodes, capacity, step.replica)
        reasons = self._gates.open(decodes, step.load(), step.now_ns)
        owed = self._gates.owed_rows(step.replica)
        reasons = self._lent_rows.keep(step, self._shares.limits, reasons, owed)
        self._locality.open()
        return Contenders(step, self._flows, self._shares, tokens, reasons, self._locality)

    def _hand_out(self, step: Step, budget: StepBudget, contenders: Contenders) -> Blocked:
        """Grant in turn; return what the step was short of when somebody could have gone on."""
        while step.tokens_left and (request := contenders.next()) is not None:
            most = budget.most(request, but_last=contenders.keeps_last(request))
            wanted = min(contenders.most_tokens(request), most)
            if wanted <= 0:
                return budget.blocked
            grant = self._grant(step, contenders, request, wanted)
            context = request.num_tokens - step.remaining(request) - grant.num_tokens
            budget.spend(request, context, grant.num_tokens)
            self._shares.charge_prefill(request, context, grant.num_tokens)
            contenders.settle(request, grant)
        return Blocked.NOTHING

    def _grant(self, step: Step, contenders: Contenders, request: Request, wanted: int) -> Grant:
        """Grant what no hard limit forbids, making room in memory where that is right."""
        if request.status is RequestStatus.RUNNING:
            return step.grant(request, wanted)
        blocked = self._gates.blocked(request, step.replica)
        if blocked is not Blocked.NOTHING:
            return Grant(0, blocked)
        if contenders.needs_reserve(request) and not self._memory.has_reserve(request, step.load()):
            return Grant(0, Blocked.CLAIM)
        grant = step.grant(request, wanted)
        is_first = self._flows.head(request.flow) is request  # room is not made for others
        if grant.blocked is Blocked.MEMORY and is_first and self._memory.make_room(step, request):
            grant = step.grant(request, wanted)
        if grant.blocked is Blocked.MEMORY:
            return Grant(0, self._memory.blocked(step, request))
        return grant

    def replica_up(self, replica: int, basis: CostBasis | None) -> None:
        """Predict its steps by the basis from now on."""
        self._pace.lose(replica)
        self._shedding.lose(replica)
        if basis is not None:
            self._models.calibrate(replica, basis)
            self._memory.calibrate(replica, basis)

    def know_pools(self, num_blocks: Mapping[int, int]) -> None:
        """Tell the limits that are shares of a pool how large that is."""
        self._gates.know_pools(num_blocks)

    def never_fits(self, request: Request) -> Rejection | None:
        """Return which share of every pool `request` exceeds."""
        return self._gates.never_fits(request)

    def measured(self, replica: int, step: int, duration_ns: int) -> None:
        """Let the cost model learn."""
        self._pace.measured(replica, step, duration_ns)

    def tend(self, room: WaitingRoom, now_ns: int) -> None:
        """Refuse early who would wait in vain."""
        self._gates.tend(now_ns)
        self._shedding.tend(room, now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when that needs another look."""
        times = (self._shedding.next_timer_ns(), self._gates.next_timer_ns())
        return min((time for time in times if time is not None), default=None)

    def cost_model(self, replica: int) -> CostModel | None:
        """Return what predicts the steps of `replica`."""
        return self._models.of(replica)

    def prediction(self, replica: int) -> Prediction | None:
        """Return how well its steps are predicted."""
        return self._pace.prediction(replica)

    def victim(
        self, candidates: Sequence[Request], beneficiary: Request, load: ReplicaLoad
    ) -> Preemption | None:
        """Return who gives memory back for the running `beneficiary`."""
        return self._memory.victim(candidates, beneficiary, load)

    def headroom_blocks(self, request: Request, load: ReplicaLoad) -> int:
        """Return what those that run will come to need, and what others reserve."""
        return self._memory.headroom_blocks(request, load)

    def why(self, request: Request) -> Wait | None:
        """Return which hard limit keeps a waiting `request` back, or what did in the last step."""
        blocked = self._gates.blocked_everywhere(request)
        forecast = self._shedding.forecast(request)
        if blocked is Blocked.NOTHING:
            wait = self._leftovers.why(request)
            return None if wait is None else replace(wait, forecast=forecast)
        if blocked is Blocked.RATE:
            forecast = forecast.not_before(self._gates.ready_ns(request))
        measured, threshold = self._gates.numbers(request, blocked)
        return Wait(blocked, measured, threshold, self._flows.rank(request), forecast)

    def standing(self, now_ns: int) -> Standing | None:
        """Return who was served how much."""
        return Standing(
            charged=self._shares.charged.copy(),
            leads=self._shares.leads(),
            class_leads=self._shares.class_leads(),
            budget_tokens=self._gates.tokens_left(now_ns),
            budget_tats_ns=self._gates.tats_ns(),
        )

    def accounts(self) -> Accounts:
        """Return the epoch of the prices, and what the system bears."""
        return Accounts(self._shares.book.epoch, self._shares.system_charged)

    def leftovers(self) -> Mapping[Blocked, int]:
        """Return what steps have left unused, by reason."""
        return self._leftovers.by_reason()

    def is_protected(self, request: Request) -> bool:
        """Tell whether nobody who comes can make `request` late."""
        return request in self._shedding.protection.protected

    def check_integrity(self) -> None:
        """Assert that queues and shares are whole."""
        self._flows.check_integrity()
        self._shares.check_integrity()
        self._gates.check_integrity()
        assert np.all(self._flows.num_running >= 0)
