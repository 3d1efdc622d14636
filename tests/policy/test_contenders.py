"""Whose turn it is: the cases that need a closer look than a whole step of the policy gives."""

import numpy as np
import pytest

from core.clock import NS_PER_MS, NS_PER_S
from core.config.scheduling import PolicyConfig
from core.policy.base import Blocked, Grant
from core.policy.headrace import HeadracePolicy
from core.policy.limits import Limits
from core.policy.pacing.company import Company
from core.policy.pacing.step_budget import StepRoom
from core.policy.queues.flows import Flows
from core.policy.settings import PolicySettings
from core.policy.turns.closures import TRIES
from core.policy.turns.contenders import Contenders
from core.policy.turns.step_shares import StepShares
from core.request import Request, RequestStatus
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from tests.support.policy.policy_step import PolicyStep
from tests.support.scheduler.checked_engine import make_request

INTERACTIVE, STANDARD, BATCH, ADMINISTRATIVE = TrafficClass
ROOM = StepRoom(400 * NS_PER_MS, 10 * NS_PER_MS)


class Rig:
    """A policy whose parts are used one by one."""

    def __init__(self, **classes: ClassConfig) -> None:
        table = {each.label: ClassConfig() for each in TrafficClass} | classes
        self.limits = Limits(classes=ClassesConfig(**table))
        self.policy = HeadracePolicy(
            PolicySettings(
                max_num_partial_prefills=4,
                kv_headroom_fraction=0.0,
                tuning=PolicyConfig(tenant_window_tokens=10),
                limits=self.limits,
            )
        )
        self.step = PolicyStep(self.policy)
        self.count = 0

    @property
    def flows(self) -> Flows:
        return self.policy._flows

    def waits(self, tenant: int, traffic_class: TrafficClass = STANDARD) -> Request:
        self.count += 1
        request = make_request(
            self.count, 50, tenant=f"t{tenant}", traffic_class=traffic_class, order=self.count
        )
        request.arrival_ns, request.tenant_index = self.count, tenant
        self.policy.add(request)
        return request

    def open(self, reasons: dict[int, Blocked] | None = None) -> Contenders:
        policy = self.policy
        kept = np.zeros(len(self.flows), np.int8)
        for flow, blocked in (reasons or {}).items():
            kept[flow] = blocked
        tokens = StepShares(self.limits, 1).open(self.step.decodes(), 100, 0)
        return Contenders(self.step, policy._flows, policy._shares, tokens, kept, policy._locality)


def block(contenders: Contenders, blocked: Blocked) -> Request:
    """Refuse whose turn it is."""
    request = contenders.next()
    assert request is not None
    contenders.settle(request, Grant(0, blocked))
    return request


def test_an_engine_that_nobody_uses_has_no_turns() -> None:
    """Without flows there is nobody."""
    assert Rig().open().next() is None


def test_a_limit_of_its_own_keeps_a_flow_out_and_out_of_the_least_served() -> None:
    """A tenant at its concurrency holds nobody back, and is told why it waits."""
    rig = Rig()
    kept, other = rig.waits(1), rig.waits(2)
    contenders = rig.open({kept.flow: Blocked.CONCURRENCY})
    assert contenders.next() is other
    assert contenders.reason(kept.flow) is Blocked.CONCURRENCY
    assert contenders.reason(other.flow) is Blocked.NOTHING


def test_the_first_that_was_blocked_is_what_tokens_are_left_for() -> None:
    """In the order of turns, not of flows."""
    rig = Rig()
    rig.waits(2)
    rig.waits(1)
    contenders = rig.open()
    block(contenders, Blocked.ELSEWHERE)
    block(contenders, Blocked.KV_QUOTA)
    assert contenders.next() is None
    assert contenders.first_blocked() is Blocked.ELSEWHERE


def test_after_a_few_that_are_too_long_nobody_else_is_tried() -> None:
    """A long queue of long prompts costs a step a few looks."""
    rig = Rig()
    waiting = [rig.waits(tenant) for tenant in range(1, TRIES + 3)]
    contenders = rig.open()
    tried = [block(contenders, Blocked.PARTIAL_PREFILLS) for _ in range(TRIES)]
    assert tried == waiting[:TRIES]
    assert contenders.next() is None
    assert contenders.reason(waiting[-1].flow) is Blocked.PARTIAL_PREFILLS


@pytest.mark.parametrize("blocked", [Blocked.CLASS_CAP, Blocked.RESERVE])
def test_what_stops_a_class_stops_all_its_tenants(blocked: Blocked) -> None:
    """The next turn is another class's."""
    rig = Rig()
    rig.waits(1, BATCH)
    rig.waits(2, BATCH)
    other = rig.waits(3, INTERACTIVE)
    contenders = rig.open()
    block(contenders, blocked)
    assert contenders.next() is other


def test_behind_a_claim_a_class_with_memory_may_start_within_it_only() -> None:
    """Who can be dropped needs no reserve; a class without either is closed."""
    rig = Rig(
        batch=ClassConfig(preemptible=True), interactive=ClassConfig(reserved_kv_fraction=0.1)
    )
    rig.waits(1, STANDARD)
    closed, reserved, dropped = (
        rig.waits(2, ADMINISTRATIVE),
        rig.waits(3, INTERACTIVE),
        rig.waits(4, BATCH),
    )
    contenders = rig.open()
    block(contenders, Blocked.MEMORY)
    assert contenders.reason(closed.flow) is Blocked.CLAIM
    assert contenders.next() is reserved
    assert contenders.needs_reserve(reserved)
    assert not contenders.needs_reserve(dropped)
    block(contenders, Blocked.CLAIM)
    assert contenders.next() is dropped


def test_who_is_preempted_by_the_step_itself_has_no_turn_in_it() -> None:
    """A prompt under way that has lost its row is passed over."""
    rig = Rig()
    victim, other = rig.waits(1), rig.waits(2)
    rig.step.start(victim)
    contenders = rig.open()
    victim.move_to(RequestStatus.PREEMPTED)
    rig.policy.stopped(victim)
    assert contenders.next() is other


def test_among_those_outside_their_windows_the_least_served_goes_on() -> None:
    """When nobody inside can use the step, it is extended in the order of service."""
    rig = Rig()
    poor, rich, richer = (rig.waits(tenant) for tenant in (1, 2, 3))
    shares = rig.policy._shares
    for request, units in ((rich, 50_000), (richer, 90_000)):
        shares._pay(request.flow, units)
    contenders = rig.open()
    assert block(contenders, Blocked.ELSEWHERE) is poor
    assert contenders.next() is rich


def test_where_nothing_is_promised_the_least_served_goes_first() -> None:
    """Within the windows too, whoever came first; of what is promised that which is due first."""
    rig = Rig()
    rich, poor, promised = rig.waits(1), rig.waits(2), rig.waits(3)
    rig.policy.remove(promised)
    promised.ttft_deadline_ns = 10**12
    rig.policy.add(promised)
    shares = rig.policy._shares
    for request, units in ((rich, 2000), (promised, 5000)):
        shares._pay(request.flow, units)
    contenders = rig.open()
    turns = [block(contenders, Blocked.ELSEWHERE) for _ in range(3)]
    assert turns == [promised, poor, rich]
    assert all(shares.is_within(each.flow) for each in turns)


@pytest.mark.parametrize("seconds", [1, 6])
def test_whose_requests_were_refused_lately_goes_last_in_its_window(seconds: int) -> None:
    """It asks for more than can be had: that its next ones are due is its own doing."""
    rig = Rig()
    crowding, other = rig.waits(1), rig.waits(2)
    for request, due_ns in ((crowding, 10**12), (other, 2 * 10**12)):
        rig.policy.remove(request)
        request.ttft_deadline_ns = due_ns
        rig.policy.add(request)
    unpromised = rig.waits(3)
    rig.step.now_ns = 10**10
    rig.flows.refused(crowding, rig.step.now_ns - seconds * NS_PER_S)
    contenders = rig.open()
    turns = [block(contenders, Blocked.ELSEWHERE) for _ in range(3)]
    first_two = [other, crowding] if seconds == 1 else [crowding, other]
    assert turns == [*first_two, unpromised]


@pytest.mark.parametrize("is_sworn", [False, True])
def test_a_prompt_that_was_given_the_word_goes_on_though_others_were_refused(
    is_sworn: bool,
) -> None:
    """One that was not gives way in its window."""
    rig = Rig()
    begun, other = rig.waits(1), rig.waits(2)
    for request, due_ns in ((begun, 10**12), (other, 2 * 10**12)):
        rig.policy.remove(request)
        request.ttft_deadline_ns = due_ns
        rig.policy.add(request)
    rig.flows.sworn.update({begun} if is_sworn else ())
    rig.step.start(begun)
    rig.flows.refused(begun, rig.step.now_ns)
    contenders = rig.open()
    assert contenders.next() is (begun if is_sworn else other)


def test_of_classes_without_promises_the_least_served_goes_first() -> None:
    """Then the one whose request came first."""
    rig = Rig()
    standard, batch, interactive = (rig.waits(1, c) for c in (STANDARD, BATCH, INTERACTIVE))
    rig.policy._shares._classes.charge(STANDARD, 1000)
    contenders = rig.open()
    turns = [block(contenders, Blocked.ELSEWHERE) for _ in range(3)]
    assert turns == [batch, interactive, standard]


def test_a_reserve_acts_for_who_has_used_half_of_its_promise() -> None:
    """Before, deadlines decide: it would make others late for nothing (P6)."""
    rig = Rig(interactive=ClassConfig(reserved_step_fraction=0.5, ttft_ms=2000))
    reserved, first = rig.waits(1, INTERACTIVE), rig.waits(2, STANDARD)
    for request, due_ms in ((reserved, 2000), (first, 10)):
        rig.policy.remove(request)
        request.start_by_ns = due_ms * NS_PER_MS
        rig.policy.add(request)
    rig.step.now_ns = 999 * NS_PER_MS
    assert rig.open().next() is first
    rig.step.now_ns = 1000 * NS_PER_MS
    assert rig.open().next() is reserved


def due_in(rig: Rig, request: Request, due_ms: int) -> None:
    rig.policy.remove(request)
    request.start_by_ns = due_ms * NS_PER_MS
    rig.policy.add(request)


@pytest.mark.parametrize("units_ahead", [0, 50_000])
def test_who_waits_for_company_goes_after_all_others(units_ahead: int) -> None:
    """It goes on as soon as nobody else can use the step, and keeps nobody out of the window."""
    tight, loose = ClassConfig(ttft_ms=6000, itl_ms=50), ClassConfig(ttft_ms=60_000, itl_ms=400)
    rig = Rig(interactive=tight, standard=loose)
    waiting, other = rig.waits(1, INTERACTIVE), rig.waits(2, STANDARD)
    due_in(rig, waiting, 5000)
    due_in(rig, other, 50_000)
    rig.policy._shares._pay(other.flow, units_ahead)
    contenders = rig.open()
    assert contenders.next() is waiting
    contenders.wait_for(Company(rig.limits, 0.25), ROOM)
    assert block(contenders, Blocked.ELSEWHERE) is other
    assert contenders.next() is waiting


class Gathering:
    """A class with a tight cap that waits for company no more, beside one without."""

    def __init__(self, due_ms: int = 4000) -> None:
        tight, loose = ClassConfig(ttft_ms=6000, itl_ms=50), ClassConfig(ttft_ms=60_000, itl_ms=400)
        self.rig = Rig(interactive=tight, standard=loose)
        self.step = self.rig.step
        self.other = self.rig.waits(3, STANDARD)
        due_in(self.rig, self.other, 50_000)
        self.due_ms = due_ms

    def waits(self, tenant: int) -> Request:
        request = self.rig.waits(tenant, INTERACTIVE)
        due_in(self.rig, request, self.due_ms + self.rig.count)
        return request

    def open(self) -> Contenders:
        contenders = self.rig.open()
        contenders.wait_for(Company(self.rig.limits, 0.25), ROOM)
        return contenders

    def two_held(self) -> tuple[Request, Request, Contenders]:
        """Return two prompts that have gathered, and the step in which they did."""
        self.step.tokens_left = 1000
        one, two = self.waits(1), self.waits(2)
        contenders = self.open()
        assert [self.grant(contenders) for _ in range(2)] == [(one, 1), (two, 1)]
        return one, two, contenders

    def grant(self, contenders: Contenders, num_tokens: int = 50) -> tuple[Request, int] | None:
        """Give whose turn it is what the policy would; return who it was and what is left."""
        request = contenders.next()
        if request is None:
            return None
        left = self.step.remaining(request)
        most = max(1, left - 1) if contenders.keeps_last(request) else left
        contenders.settle(request, self.step.grant(request, min(most, num_tokens)))
        return request, self.step.remaining(request)


def test_prompts_of_a_tight_class_gather_until_the_turn_passes() -> None:
    """All but the last token of each, then those, then the others."""
    case = Gathering()
    case.step.tokens_left = 200
    one, two = case.waits(1), case.waits(2)
    contenders = case.open()
    granted = [case.grant(contenders) for _ in range(5)]
    assert granted == [(one, 1), (two, 1), (one, 0), (two, 0), (case.other, 0)]
    assert case.grant(contenders) is None


def test_who_has_gathered_waits_for_those_that_a_step_had_no_room_for() -> None:
    """Also for one that comes meanwhile, and nobody is forgotten when it is blocked."""
    case = Gathering()
    one, two, _ = case.two_held()
    three = case.waits(1)
    second = case.open()
    assert second.flows_under_way() == []
    assert block(second, Blocked.MEMORY) is three
    assert [case.grant(second) for _ in range(2)] == [(one, 0), (two, 0)]


def test_who_was_set_aside_and_has_lost_its_row_is_not_let_go() -> None:
    """Nor anybody of a class that has had all that it may of the step; the others are."""
    case = Gathering()
    one, two, contenders = case.two_held()
    one.move_to(RequestStatus.PREEMPTED)
    assert case.grant(contenders) == (two, 0)
    assert contenders.next() is case.other


def test_a_class_at_its_cap_keeps_what_it_has_set_aside() -> None:
    """The turn passes to others, and it goes first in the next step."""
    case = Gathering()
    case.step.tokens_left = 1000
    one = case.waits(1)
    first = case.open()
    first._tokens.most[INTERACTIVE] = 49
    assert [case.grant(first) for _ in range(2)] == [(one, 1), (case.other, 0)]
    assert case.grant(first) is None
    assert case.grant(case.open()) == (one, 0)


def test_who_was_preempted_while_it_decoded_neither_waits_nor_gathers() -> None:
    """The gap of its next token was promised, not its first."""
    case = Gathering(due_ms=5000)
    one = case.waits(1)
    assert case.open().next() is case.other
    one.num_output_tokens = 1
    assert case.grant(case.open()) == (one, 0)


def test_nobody_gathers_where_nobody_else_can_use_the_step() -> None:
    """It would be late for nothing."""
    case = Gathering()
    one, two = case.waits(1), case.waits(2)
    case.rig.policy.remove(case.other)
    contenders = case.open()
    assert [case.grant(contenders) for _ in range(2)] == [(one, 0), (two, 0)]


def test_a_prompt_that_has_waited_long_is_computed_whole() -> None:
    """Its promise comes first; those that were held for it go before it, and nobody is any more."""
    case = Gathering(due_ms=3000)
    one = case.waits(1)
    assert case.grant(case.open()) == (one, 0)
    case = Gathering()
    case.step.tokens_left = 1000
    one, two, three = case.waits(1), case.waits(2), case.waits(2)
    due_in(case.rig, two, 3300)
    contenders = case.open()
    assert [case.grant(contenders) for _ in range(3)] == [(two, 0), (one, 0), (three, 0)]


def test_one_under_way_that_has_waited_long_ends_the_gathering_of_its_class() -> None:
    """Whoever was held with it."""
    case = Gathering()
    one, two, contenders = case.two_held()
    three = case.waits(1)
    case.step.now_ns += 700 * NS_PER_MS
    contenders = case.open()
    assert [case.grant(contenders) for _ in range(3)] == [(one, 0), (two, 0), (three, 0)]
