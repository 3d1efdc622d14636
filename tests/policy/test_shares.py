"""Accounts and windows of flows: who is charged what, and who is ahead."""

import numpy as np
import pytest

from core.config.scheduling import PolicyConfig
from core.policy.base import ReplicaLoad, RunningRows
from core.policy.cost_model import CostBasis
from core.policy.fairness.prices import PriceBook
from core.policy.fairness.rests import KEPT_WINDOWS
from core.policy.fairness.shares import RESIDENCY_STEPS, Shares
from core.policy.limits import Limits
from core.policy.queues.flows import Flows
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.tenancy.classes import NUM_CLASSES, TrafficClass
from core.tenancy.tenants import TenantConfig
from tests.support.loads.watched_fairness import limits_of, plain_classes
from tests.support.policy.policy_step import PolicyStep
from tests.support.scheduler.checked_engine import make_request

BASIS = CostBasis(2e6, 5000.0, 0.25, 0.5, 1000.0)
STANDARD = TrafficClass.STANDARD


class Rig:
    """Shares with requests that run where a test wants them."""

    def __init__(self, tuning: PolicyConfig | None = None, limits: Limits | None = None) -> None:
        self.flows = Flows()
        settings = PolicySettings(
            max_num_partial_prefills=4,
            kv_headroom_fraction=0.0,
            tuning=tuning or PolicyConfig(kv_price=0.0),
            limits=limits or limits_of(plain_classes(1, 1, 1, 1), {}),
        )
        self.shares = Shares(settings, self.flows, PriceBook(settings.tuning, None))
        self.count = 0

    def runs(self, tenant: int, charged_tokens: int = 0) -> Request:
        """Return a new running request; its row is its id."""
        self.count += 1
        request = make_request(self.count, 50, tenant=f"t{tenant}", order=self.count)
        request.tenant_index, request.num_charged_tokens = tenant, charged_tokens
        if self.flows.know(request):
            self.shares.resize()
        request.move_to(RequestStatus.RUNNING)
        request.replica, request.row = 0, self.count
        self.flows.num_running[request.flow] += 1
        self.shares.started(request)
        return request

    def stops(self, request: Request) -> None:
        self.flows.num_running[request.flow] -= 1
        self.shares.stopped(request)

    def decode(self, *requests: Request) -> None:
        """Charge a decode of each in a step that stays open."""
        step = PolicyStep(None, decoding=list(requests))  # type: ignore[arg-type]
        self.shares.charge_decodes(0, step.decodes())

    def charged(self, tenant: int) -> int:
        self.shares.check_integrity()
        return int(self.shares.charged[tenant * NUM_CLASSES + STANDARD])


def test_decodes_and_prompts_are_charged_to_their_flows() -> None:
    """A step's charges go to those in it."""
    rig = Rig()
    one, other, prompt = rig.runs(1), rig.runs(2), rig.runs(2)
    rig.decode(one, other)
    rig.shares.charge_prefill(prompt, 0, 7)
    assert (rig.charged(1), rig.charged(2)) == (2000, 9000)


def test_what_was_charged_before_is_charged_to_the_system() -> None:
    """Prompt tokens up to the position that was paid, and decodes before it."""
    rig = Rig()
    request = rig.runs(1, charged_tokens=52)
    rig.shares.charge_prefill(request, 0, 50)
    rig.decode(request)
    assert rig.charged(1) == 0
    assert rig.shares.system_charged == 52_000


def test_a_prompt_partly_paid_is_charged_for_the_rest() -> None:
    """The chunk is divided at the position that was paid."""
    rig = Rig()
    request = rig.runs(1, charged_tokens=30)
    rig.shares.charge_prefill(request, 20, 25)
    assert (rig.charged(1), rig.shares.system_charged) == (15_000, 10_000)


def test_who_leaves_the_step_takes_its_charges_along() -> None:
    """A decode and a chunk of this step are taken back; those of earlier steps stay."""
    rig = Rig()
    decoding, prompt = rig.runs(1), rig.runs(2)
    rig.decode(decoding)
    rig.shares.close(PolicyStep(None), ())  # type: ignore[arg-type]
    decoding.num_output_tokens = 1
    rig.decode(decoding)
    rig.shares.charge_prefill(prompt, 0, 7)
    rig.stops(decoding)
    rig.stops(prompt)
    assert (rig.charged(1), rig.charged(2)) == (2000, 0)
    assert (decoding.num_charged_tokens, prompt.num_charged_tokens) == (51, 0)


def test_a_row_that_changes_hands_in_a_step_is_not_charged_twice() -> None:
    """Its second owner takes nothing back that it was not charged."""
    rig = Rig()
    first = rig.runs(1)
    rig.decode(first)
    rig.stops(first)
    second = rig.runs(2)
    second.row = first.row
    rig.shares.ledger.stopped(second)
    rig.shares.started(second)
    rig.stops(second)
    assert (rig.charged(1), rig.charged(2)) == (0, 0)


def test_a_refund_moves_all_charges_of_a_request_to_the_system() -> None:
    """Once, whatever happens afterwards."""
    rig = Rig()
    request = rig.runs(1)
    rig.shares.charge_prefill(request, 0, 50)
    rig.decode(request)
    rig.shares.close(PolicyStep(None), ())  # type: ignore[arg-type]
    rig.stops(request)
    rig.shares.refund(request)
    rig.shares.refund(request)
    assert (rig.charged(1), rig.shares.system_charged) == (0, 52_000)


def test_held_memory_is_charged_by_the_share_of_the_pool() -> None:
    """Who holds a quarter of the pool pays a quarter of its price: a fifth of the charges."""
    rig = Rig(PolicyConfig(kv_price=0.2))
    request, idle = rig.runs(1), rig.runs(2)
    for step_number in range(RESIDENCY_STEPS):
        request.num_output_tokens = step_number
        step = HoldingStep([request], idle)
        rig.shares.charge_decodes(0, step.decodes())
        rig.shares.close(step, ())
    assert rig.charged(1) == 2000 * RESIDENCY_STEPS
    assert rig.charged(2) == int(0.25 * 0.2 * 2000 * RESIDENCY_STEPS)


class HoldingStep(PolicyStep):
    """A replica of 100 blocks of which `holder` has 25."""

    def __init__(self, decoding: list[Request], holder: Request) -> None:
        super().__init__(None, decoding=decoding)  # type: ignore[arg-type]
        self.holder = holder

    def load(self) -> ReplicaLoad:
        empty = np.zeros(1, np.int32)
        rows = RunningRows(
            requests=[self.holder],
            active=np.ones(1, np.bool_),
            tenant_index=np.array([self.holder.tenant_index], np.int32),
            traffic_class=np.array([self.holder.traffic_class], np.int32),
            prompt_len=empty,
            num_tokens=empty,
            num_computed=empty,
            max_length=empty,
            num_blocks=np.array([25], np.int32),
        )
        return ReplicaLoad(100, 75, 1, rows=rows)


def test_a_tenant_that_returns_has_saved_nothing_up() -> None:
    """It is lifted to where those are who were served in the meantime, decodes included."""
    rig = Rig()
    busy = rig.runs(1)
    idle = rig.runs(2)
    rig.stops(idle)
    for step_number in range(10):
        busy.num_output_tokens = step_number
        rig.decode(busy)
        rig.shares.close(PolicyStep(None), ())  # type: ignore[arg-type]
    rig.shares.wake(idle.flow)
    assert rig.shares.over_share(idle.flow) == rig.shares.over_share(busy.flow)


@pytest.mark.parametrize("heaviest", [1, 2])
@pytest.mark.parametrize(("units", "kept"), [(900, 900), (2000, 0)])
def test_a_client_may_take_a_moment_for_its_next_request(
    units: int, kept: int, heaviest: int
) -> None:
    """What others are served meanwhile, while more of them wait, is made up for, up to a window;
    after a longer rest nothing of it. What a tenant of another class weighs changes nothing.
    """
    tenants = {"t3": TenantConfig(name="t3", weight=heaviest)}
    rig = Rig(
        PolicyConfig(kv_price=0.0, tenant_window_tokens=1),
        Limits(classes=plain_classes(1, 1, 1, 1), tenants=tenants),
    )
    rig.runs(3)
    busy, one_by_one = rig.runs(1), rig.runs(2)
    rig.flows.num_waiting[busy.flow] = 1
    wanting = np.arange(len(rig.flows)) == busy.flow
    rig.shares.advance(wanting)
    rig.stops(one_by_one)
    rig.shares._pay(busy.flow, units)
    rig.shares.advance(wanting)
    rig.shares.wake(one_by_one.flow)
    assert rig.shares.over_share(one_by_one.flow) == -kept * heaviest


@pytest.mark.parametrize(("own", "heaviest"), [(1.0, 1), (1.0, 2), (0.5, 1)])
def test_what_is_made_up_for_has_a_limit(own: float, heaviest: int) -> None:
    """Four windows of its own service, while something of it runs, whatever it weighs or another
    does.
    """
    tenants = {
        "t2": TenantConfig(name="t2", weight=own),
        "t3": TenantConfig(name="t3", weight=heaviest),
    }
    rig = Rig(
        PolicyConfig(kv_price=0.0, tenant_window_tokens=1),
        Limits(classes=plain_classes(1, 1, 1, 1), tenants=tenants),
    )
    rig.runs(3)
    busy, decodes = rig.runs(1), rig.runs(2)
    rig.shares._pay(busy.flow, 20_000)
    rig.shares.advance(np.arange(len(rig.flows)) == busy.flow)
    rig.shares.wake(decodes.flow)
    assert rig.shares.over_share(decodes.flow) == -KEPT_WINDOWS * 1000 * heaviest / own


def test_who_had_more_while_nobody_waited_owes_nothing_for_it() -> None:
    """Two run with all they want; whoever was served less has nothing to catch up with."""
    rig = Rig()
    more, less = rig.runs(1), rig.runs(2)
    rig.shares.charge_prefill(more, 0, 40)
    rig.shares.charge_prefill(less, 0, 3)
    rig.shares.wake(less.flow)
    assert rig.shares.over_share(more.flow) == rig.shares.over_share(less.flow) == 0


def test_a_prompt_under_way_keeps_tenants_apart() -> None:
    """Whoever has one could use more: the other is ahead of it."""
    rig = Rig()
    more, less = rig.runs(1), rig.runs(2)
    rig.shares.charge_prefill(more, 0, 40)
    rig.shares.charge_prefill(less, 0, 3)
    rig.shares.close(PolicyStep(None), (less.flow,))  # type: ignore[arg-type]
    rig.shares.wake(more.flow)
    assert rig.shares.over_share(more.flow) == 37_000


def test_decodes_that_began_while_nobody_waited_are_charged_and_do_not_count() -> None:
    """Also when one of them leaves the step that it was charged in."""
    rig = Rig()
    spared, other = rig.runs(1), rig.runs(2)
    step = PolicyStep(None, decoding=[spared])  # type: ignore[arg-type]
    rig.shares.close(step, ())
    rig.shares.close(step, (other.flow,))
    rig.decode(spared, other)
    virtual = rig.shares._tenants.virtual[:, STANDARD].tolist()
    assert (rig.charged(1), rig.charged(2)) == (2000, 2000)
    assert virtual[1] < virtual[2]
    rig.stops(spared)
    assert rig.charged(1) == 0
    assert rig.shares._tenants.virtual[:, STANDARD].tolist() == virtual


def test_who_has_not_appeared_is_not_the_heaviest() -> None:
    """Weights of tenants that have sent nothing change no window."""
    limits = Limits(
        classes=plain_classes(1, 1, 1, 1),
        tenants={"t2": TenantConfig(name="t2", weight=0.25)},
    )
    rig = Rig(limits=limits)
    request = rig.runs(2)
    rig.shares.charge_prefill(request, 0, 10)
    assert rig.shares.over_share(request.flow) == 10_000


def test_debts_keep_their_length_when_the_unit_changes() -> None:
    """When the first cost model comes, what was counted in tokens counts in their time."""
    rig = Rig()
    ahead = rig.runs(1)
    rig.shares.charge_prefill(ahead, 0, 20)
    rig.shares.follow_prices(BASIS, 1)
    token = rig.shares.book.prices.prefill_token
    assert abs(rig.shares.over_share(ahead.flow) - 20 * token) < 1
    assert rig.shares.is_within(ahead.flow)
