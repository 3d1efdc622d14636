"""The hierarchy of shares: class, then tenant.

Owns: who was charged what at both levels, and which flows are within their windows. Never knows:
deadlines, who may have memory, how a step is filled.

Every charge goes to one account: that of a flow, or that of the system, which bears what is
computed again and what is refunded because the request failed or was shed.

    charges of all steps = Σ accounts of the flows + account of the system, exactly

with what flows were charged whose index has passed to another tenant.

While nobody of a class waits, its tenants are level: who then has more takes it from nobody. What
was begun by then does not count against them afterwards either (`spare_service`).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_MS
from core.policy.base import DecodeBatch, ReplicaLoad, Step
from core.policy.cost_model import CostModel
from core.policy.fairness.ledger import Ledger, StepCharges
from core.policy.fairness.prices import PriceBook
from core.policy.fairness.rests import Rests
from core.policy.fairness.spare_service import SpareService
from core.policy.limits import Limits
from core.policy.queues.fair_queue import PRECISION, Charges, FairQueue, FairTable, Mask
from core.policy.queues.flows import Flows
from core.policy.settings import PolicySettings
from core.request import Request
from core.tenancy.classes import NUM_CLASSES, TrafficClass

RESIDENCY_STEPS = 8  # held memory is charged for so many steps at once


class Shares:
    """Charges and windows of all flows."""

    def __init__(self, settings: PolicySettings, flows: Flows, book: PriceBook) -> None:
        """Start with nothing charged."""
        self.limits = settings.limits
        self.book = book
        self.charged = np.zeros(0, np.int64)  # by flow
        self.system_charged = 0
        self.total_charged = 0
        self._forgotten_charged = 0  # to flows whose index is another tenant's now
        self.ledger = Ledger()
        self._flows = flows
        self._tuning = settings.tuning
        self._classes = FairQueue()
        self._tenants = FairTable(NUM_CLASSES)
        self._rests = Rests(self._tenants)
        self._classes.resize([self.limits.of(c).weight for c in TrafficClass])
        self._set_windows()
        self._each_tenant = np.ones(0, np.int64)
        self._is_stale = False  # charged since V was worked out
        self._under_way: dict[int, Sequence[int]] = {}  # by replica: flows with a prompt left over
        self._spare = SpareService()
        self._held: dict[int, tuple[int, int]] = {}  # by replica: steps, and their charges
        self._step = StepCharges()

    def configure(self, limits: Limits) -> None:
        """Let changed weights rule from now on."""
        self.limits = limits
        self._classes.resize([limits.of(c).weight for c in TrafficClass])
        self.resize()

    def resize(self) -> None:
        """Take in new tenants."""
        names = self._flows.tenant_names
        known = [self.limits.tenant(name).weight for name in names if name]
        if not known:
            return
        others = min(known)  # who has not appeared must not be the heaviest
        self._tenants.resize([self.limits.tenant(n).weight if n else others for n in names])
        missing = len(names) * NUM_CLASSES - len(self.charged)
        self.charged = np.concatenate([self.charged, np.zeros(missing, np.int64)])
        self._each_tenant = np.ones(len(names), np.int64)  # times a table: the sums of its columns

    def forget_tenant(self, index: int) -> None:
        """Let the next tenant of this index begin without an account, neither ahead nor behind."""
        flows = range(index * NUM_CLASSES, (index + 1) * NUM_CLASSES)
        if flows.start >= len(self.charged):
            return
        charged = self.charged[flows.start : flows.stop]
        self._forgotten_charged += int(charged.sum())
        charged[:] = 0
        self._tenants.level_child(index)
        for flow in flows:
            self._rests.end(flow)
        for replica, under_way in self._under_way.items():
            self._under_way[replica] = [flow for flow in under_way if flow not in flows]

    def wake(self, flow: int) -> None:
        """A flow is about to have a waiting request and has none."""
        if self._is_stale:
            self._catch_up()
        tenant, traffic_class = divmod(flow, NUM_CLASSES)
        self._tenants.wake(tenant, traffic_class, self._kept(flow))
        self._rests.end(flow)
        if not self._flows.waiting_of_class(traffic_class):
            self._classes.wake(traffic_class)

    def started(self, request: Request) -> None:
        """Open its account."""
        self.ledger.started(request)
        self._spare.started(request)

    def stopped(self, request: Request) -> None:
        """Close its account."""
        self.take_back(request)
        decode_units = self.ledger.stopped(request)
        self._flows.charge(request, decode_units)
        if not self._flows.num_running[request.flow]:
            if self._is_stale:
                self._catch_up()
            self._rests.begin(request.flow, self.tenant_window)

    def shortened(self, request: Request) -> None:
        """Take in that it leaves the step and will compute some of its tokens again."""
        self.take_back(request)
        self.ledger.shortened(request)

    def take_back(self, request: Request) -> None:
        """Forget what the step that is being filled was to cost `request`: it has left the step."""
        taken_back = self._step.take_back(request, self.ledger)
        if taken_back is not None:
            row, context = self.ledger.row(request), taken_back.charged_tokens
            counts = not self._spare.has(request.replica, row, context)
            self._pay(request.flow, -taken_back.units, counts=counts)
            self.system_charged -= taken_back.redone
            self._count(-taken_back.units - taken_back.redone)

    def refund(self, request: Request) -> None:
        """Bear what a request was charged that ends without its fault."""
        units, request.num_charged_units = request.num_charged_units, 0
        if units:
            self._pay(request.flow, -units)
            self.system_charged += units

    def follow_prices(self, model: CostModel | None, now_ns: int) -> None:
        """Go over to the prices of the next epoch if it is time."""
        before, was_time = self.book.prices, self.book.is_time
        if not self.book.follow(model, now_ns):
            return
        self._set_windows()
        if self.book.is_time != was_time:
            factor = self.book.prices.prefill_token / before.prefill_token
            self._classes.rescale(factor)
            self._tenants.rescale(factor)
            self._rests.forget()

    def charge_decodes(self, replica: int, decodes: DecodeBatch) -> None:
        """Charge each decode in the step to its flow."""
        self._step = StepCharges(replica)
        if not len(decodes.rows):
            return
        units = self.book.prices.decodes(decodes.context_tokens)
        flows = decodes.tenant_index * NUM_CLASSES + decodes.traffic_class
        redone = self.ledger.note_decodes(replica, decodes.rows, decodes.context_tokens, units)
        self._step.decodes(decodes, units, redone)
        if redone is not None:
            system = int(units[redone].sum())
            self.system_charged += system
            self._count(system)
            units = np.where(redone, 0.0, units)
        amounts = counted = _by_flow(flows, units, len(self.charged))
        spared = self._spare.of(replica, decodes)
        if spared is not None:
            counted = _by_flow(flows, np.where(spared, 0.0, units), len(self.charged))
        self._count(self._pay_all(amounts, counted))

    def charge_prefill(self, request: Request, context: int, num_tokens: int) -> None:
        """Charge computed prompt tokens; those charged before to the system."""
        if not num_tokens:
            return
        prices, end = self.book.prices, context + num_tokens
        charged_tokens = self.ledger.charged_tokens(request)
        again = min(max(charged_tokens - context, 0), num_tokens)
        redone = prices.prefill(again, context) if again else 0
        units = prices.prefill(num_tokens, context) - redone
        self.system_charged += redone
        self._count(units + redone)
        self._step.grant(request, charged_tokens, units, redone)
        self.ledger.note_prompt(request, max(charged_tokens, end), units)
        self._flows.charge(request, units)
        self._pay(request.flow, units)

    def close(self, step: Step, under_way: Sequence[int]) -> None:
        """End a step, which left prompts of the flows `under_way` unfinished: what it holds stays
        charged, and so is, now and then, the memory held.
        """
        replica = step.replica
        self._under_way[replica] = under_way
        self._spare.filled(replica, step.decodes(), self._wanting_classes())
        steps, charges = self._held.get(replica, (0, 0))
        steps, charges = steps + 1, charges + self._step.total
        self._step = StepCharges()
        if steps == RESIDENCY_STEPS:
            self._charge_residency(step.load(), charges)
            steps = charges = 0
        self._held[replica] = (steps, charges)

    def advance(self, serviceable: Mask) -> bool:
        """Work V out for both levels, given which flows could use more, bool[flows]; tell whether
        any could.
        """
        classes = self._tenants.advance(serviceable.reshape(-1, NUM_CLASSES))
        self._classes.advance(classes)
        self._is_stale = False
        return bool(classes)

    def tenants_within(self) -> Mask:
        """Return which tenants are within their window of each class, bool[tenants, classes]."""
        return self._tenants.within(self.tenant_window)

    def is_within(self, flow: int) -> bool:
        """Tell whether the tenant of a flow is within its window of the class."""
        return self._tenants.is_within(*divmod(flow, NUM_CLASSES), self.tenant_window)

    def is_class_within(self, traffic_class: int) -> bool:
        """Tell whether a class is within its window."""
        return self._classes.is_within(traffic_class, self.class_window)

    def classes_within(self) -> list[int]:
        """Return the classes that are within their window."""
        return self._classes.within(self.class_window)

    def least_served(self, flows: Mask) -> int:
        """Return of `flows`, bool[flows] with one at least, that of the least served tenant in the
        least served class.
        """
        table = flows.reshape(-1, NUM_CLASSES)
        classes = np.flatnonzero(_any_tenant(table)).tolist()
        traffic_class = min(classes, key=self._classes.lag)
        tenants = np.flatnonzero(table[:, traffic_class])
        tenant = int(tenants[self._tenants.virtual[tenants, traffic_class].argmin()])
        return tenant * NUM_CLASSES + traffic_class

    def lead(self, flow: int) -> tuple[int, int]:
        """Return by how much a flow is ahead and its window, in units; of class or tenant, where
        more of the window is used.
        """
        tenant, traffic_class = divmod(flow, NUM_CLASSES)
        pairs = (
            (self._classes.lag(traffic_class) // PRECISION, self.class_window),
            (self._tenants.lag(tenant, traffic_class) // PRECISION, self.tenant_window),
        )
        return max(pairs, key=lambda pair: pair[0] - pair[1])

    def over_share(self, flow: int) -> int:
        """Return how much more than the least served tenant of its class that of `flow` was served,
        in units for the heaviest tenant.
        """
        return self._tenants.lag(*divmod(flow, NUM_CLASSES)) // PRECISION

    def behind(self, traffic_class: int) -> Charges:
        """Return how far behind V each tenant of a class is, or would be if it came now, in units
        for the heaviest tenant, int64[tenants].
        """
        lags = self._tenants.floor[traffic_class] - self._tenants.virtual[:, traffic_class]
        behind: Charges = np.maximum(lags, 0)
        for tenant in np.flatnonzero((behind > 0) & ~self._wanting()[:, traffic_class]).tolist():
            behind[tenant] = self._kept(tenant * NUM_CLASSES + traffic_class)
        return behind // PRECISION

    def leads(self) -> Charges:
        """Return that of all flows, int64[flows]."""
        return self._tenants.leads().reshape(-1)

    def class_leads(self) -> Charges:
        """Return the same for classes among each other, int64[classes]."""
        return np.array([self.class_lead(c) for c in TrafficClass], np.int64)

    def class_lead(self, traffic_class: int) -> int:
        """Return by how many units a class is ahead of the least served one."""
        return self._classes.lag(traffic_class) // PRECISION

    def check_integrity(self) -> None:
        """Assert that no charge was lost and everything that runs has an account."""
        charged = int(self.charged.sum()) + self._forgotten_charged
        assert charged + self.system_charged == self.total_charged
        self.ledger.check_integrity(int(self._flows.num_running.sum()))

    def _set_windows(self) -> None:
        """Work out by how many units a tenant may be ahead within its class, and a class.

        By tokens it is the same for both: how long they take is not known.
        """
        tokens = self._tuning.tenant_window_tokens
        self.tenant_window = int(tokens * self.book.prices.prefill_token)
        self.class_window = self._flows.adapter_window = self.tenant_window
        if self.book.is_time:
            self.class_window = self._tuning.class_window_ms * NS_PER_MS

    def _kept(self, flow: int) -> int:
        """Return what a flow may be behind if it woke now, in virtual service."""
        runs = bool(self._flows.num_running[flow])
        return self._rests.kept(flow, self.tenant_window, runs=runs)

    def _catch_up(self) -> None:
        """Let V follow what was served since the last step that had a choice."""
        running = self._flows.by_class(self._flows.num_running) > 0
        wanting = self._wanting()
        some_want = _any_tenant(wanting)
        self._tenants.advance(wanting)
        self._tenants.level(running & ~some_want)
        self._rests.were_level(~some_want)
        classes = some_want.nonzero()[0].tolist() or _any_tenant(running).nonzero()[0].tolist()
        self._classes.advance(classes)
        self._is_stale = False

    def _wanting(self) -> Mask:
        """Return who has requests waiting or prompts under way, bool[tenants, classes]."""
        wanting = self._flows.num_waiting > 0
        for flows in self._under_way.values():
            for flow in flows:
                wanting[flow] |= self._flows.num_running[flow] > 0
        return self._flows.by_class(wanting)

    def _wanting_classes(self) -> list[bool]:
        """Return the same for classes: whether any of their tenants does."""
        wanting = [self._flows.waiting_of_class(c) > 0 for c in range(NUM_CLASSES)]
        for flows in self._under_way.values():
            for flow in flows:
                wanting[flow % NUM_CLASSES] |= bool(self._flows.num_running[flow])
        return wanting

    def _charge_residency(self, load: ReplicaLoad, charges: int) -> None:
        """Charge each flow for the blocks its requests hold; all who share a block pay for it."""
        rows, price = load.rows, self._tuning.kv_price * charges / max(1, load.num_blocks)
        if rows is None or not price:
            return
        flows = rows.tenant_index * NUM_CLASSES + rows.traffic_class
        held = np.bincount(flows, rows.num_blocks, len(self.charged))
        amounts = (held * price).astype(np.int64)
        self.total_charged += self._pay_all(amounts, amounts)

    def _pay(self, flow: int, units: int, *, counts: bool = True) -> None:
        """Charge a flow; `counts`: against its tenant's share, too."""
        self.charged[flow] += units
        tenant, traffic_class = divmod(flow, NUM_CLASSES)
        self._classes.charge(traffic_class, units)
        if counts:
            self._tenants.charge(tenant, traffic_class, units)
        self._is_stale = True

    def _pay_all(self, amounts: Charges, counted: Charges) -> int:
        """Charge all flows, and `counted` of it against their tenants' shares, both int64[flows];
        return the sum.
        """
        self.charged += amounts
        by_class: list[int] = (self._each_tenant @ amounts.reshape(-1, NUM_CLASSES)).tolist()
        for traffic_class, units in enumerate(by_class):
            self._classes.charge(traffic_class, units)
        total = sum(by_class)
        self._tenants.charge_all(counted.reshape(-1, NUM_CLASSES), total)
        self._is_stale = True
        return total

    def _count(self, units: int) -> None:
        self.total_charged += units
        self._step.total += units


def _by_flow(
    flows: npt.NDArray[np.int32], units: npt.NDArray[np.float64], num_flows: int
) -> Charges:
    """Return Σ `units`, [n], of each flow, int64[num_flows]."""
    return np.bincount(flows, units, num_flows).astype(np.int64)


def _any_tenant(table: Mask) -> Mask:
    """Return for which classes of `table`, bool[tenants, classes], any tenant is True."""
    classes: Mask = np.logical_or.reduce(table, axis=0)
    return classes
