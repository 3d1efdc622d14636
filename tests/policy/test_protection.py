"""Who passes the demand test, and where later ones may stand: 10,000 tokens a second are measured.

Of these 7,000 are reckoned with, from half a second on.
"""

import pytest

from core.clock import NS_PER_MS
from core.config.scheduling import PolicyConfig
from core.policy.fairness.prices import PriceBook
from core.policy.fairness.shares import Shares
from core.policy.lateness.precedence import Precedence
from core.policy.lateness.prefill_rate import PrefillRate
from core.policy.lateness.protection import MAX_LATER, Protection
from core.policy.lateness.under_way import UnderWay
from core.policy.limits import Limits
from core.policy.plain.fcfs import FcfsPolicy
from core.policy.queues.flows import Flows
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from tests.support.policy.policy_step import PolicyStep
from tests.support.scheduler.checked_engine import make_request

INTERACTIVE, STANDARD, BATCH, ADMINISTRATIVE = TrafficClass


def limits_of(**classes: ClassConfig) -> Limits:
    """Return plain classes, but for those given."""
    table = {each.label: ClassConfig() for each in TrafficClass} | classes
    return Limits(classes=ClassesConfig(**table))


class Rig:
    """Protection, and what it looks at."""

    def __init__(self, window: int = 100_000, **classes: ClassConfig) -> None:
        self.settings = settings = PolicySettings(
            max_num_partial_prefills=4,
            kv_headroom_fraction=0.0,
            max_num_batched_tokens=100,
            tuning=PolicyConfig(charge="tokens", tenant_window_tokens=window),
            limits=limits_of(**classes),
        )
        self.flows, self.rate, self.under_way = Flows(), PrefillRate(), UnderWay()
        self.shares = Shares(settings, self.flows, PriceBook(settings.tuning, None))
        self.protection = Protection(self.flows, self.shares, self.rate, self.under_way)
        self.rate.guess(0, 10_000.0)
        self.count = 0

    def arrive(
        self,
        prompt_len: int,
        deadline_ms: int,
        *,
        wanted_ms: int = 0,
        tenant: int = 0,
        traffic_class: TrafficClass = STANDARD,
    ) -> Request:
        """Let a request come now that would stand at `wanted_ms`, or at its deadline."""
        self.count += 1
        request = make_request(
            self.count,
            prompt_len,
            tenant=f"t{tenant}",
            traffic_class=traffic_class,
            order=self.count,
        )
        request.tenant_index = tenant
        request.ttft_deadline_ns = deadline_ms * NS_PER_MS
        wanted_ns = (wanted_ms or deadline_ms) * NS_PER_MS
        request.start_by_ns = self.protection.place_ns(request, wanted_ns, 0)
        if self.flows.know(request):
            self.shares.resize()
        self.flows.add(request)
        self.protection.add(request, 0)
        return request

    def is_protected(self, request: Request) -> bool:
        return request in self.protection.protected


@pytest.mark.parametrize(("prompt_len", "holds"), [(7000, True), (7001, False)])
def test_what_can_be_computed_in_time_is_protected(prompt_len: int, holds: bool) -> None:
    """From 0.5 to 1.5 s 7,000 tokens are."""
    rig = Rig()
    assert rig.is_protected(rig.arrive(prompt_len, 1500)) is holds


def test_only_what_stands_before_counts() -> None:
    """Work due later leaves the room to who comes, work due before takes it."""
    rig = Rig()
    rig.arrive(6000, 9000, tenant=1)
    assert rig.is_protected(rig.arrive(7000, 1500))
    assert not rig.is_protected(rig.arrive(100, 1500, tenant=2))


def test_who_comes_later_stands_behind_those_it_would_make_late() -> None:
    """It is longer, so it should start first, but the other has the word."""
    rig = Rig()
    first = rig.arrive(4000, 1500)
    second = rig.arrive(4000, 1600, wanted_ms=1000, tenant=1)
    assert rig.is_protected(first)
    assert second.start_by_ns == first.start_by_ns + 1
    assert not rig.is_protected(second)


def test_who_hurts_nobody_stands_where_it_wants() -> None:
    """There is room for both before either is due."""
    rig = Rig()
    first = rig.arrive(3000, 1500)
    second = rig.arrive(3000, 1600, wanted_ms=1000, tenant=1)
    assert second.start_by_ns == 1000 * NS_PER_MS
    assert rig.is_protected(first)
    assert rig.is_protected(second)


def test_who_has_no_word_holds_nobody_back() -> None:
    """What is late anyway leaves its place to others."""
    rig = Rig()
    late = rig.arrive(9000, 1500)
    second = rig.arrive(3000, 1600, wanted_ms=1000, tenant=1)
    assert not rig.is_protected(late)
    assert rig.is_protected(second)


def test_a_class_with_a_shorter_promise_stands_before_all_others() -> None:
    """The protected of the longer promise have reckoned with its share."""
    rig = Rig(1000, interactive=ClassConfig(ttft_ms=1000), standard=ClassConfig(ttft_ms=10_000))
    patient = rig.arrive(500, 10_000)
    hasty = rig.arrive(9000, 1000, traffic_class=INTERACTIVE)
    assert rig.is_protected(patient)
    assert hasty.start_by_ns == 1000 * NS_PER_MS


def test_a_client_in_haste_is_no_class_with_a_shorter_promise() -> None:
    """Of two classes with the same promise a deadline that was tightened changes nothing."""
    rig = Rig(interactive=ClassConfig(ttft_ms=2000), standard=ClassConfig(ttft_ms=2000))
    first = rig.arrive(6000, 2000)
    hasty = rig.arrive(5000, 100, traffic_class=INTERACTIVE)
    assert rig.is_protected(first)
    assert hasty.start_by_ns == first.start_by_ns + 1


def test_it_is_not_looked_at_more_than_some() -> None:
    """Who would stand before more protected ones stands before the last of them."""
    rig = Rig()
    waiting = [rig.arrive(1, 2000 + 100 * n) for n in range(MAX_LATER + 5)]
    assert all(rig.is_protected(each) for each in waiting)
    assert rig.arrive(1, 1500).start_by_ns == waiting[4].start_by_ns + 1


@pytest.mark.parametrize(("num_others", "holds"), [(4, True), (5, False)])
def test_what_others_may_make_up_for_is_work_before_it(num_others: int, holds: bool) -> None:
    """2,000 tokens are 1,250 beyond three quarters of the window: so many may each of the others
    have first; 8,000 can be computed in time.
    """
    rig = Rig(1000)
    for tenant in range(1, num_others + 1):
        rig.arrive(1, 60_000, tenant=tenant)
    assert rig.is_protected(rig.arrive(2000, 1643)) is holds


def test_who_leaves_makes_room() -> None:
    """Its work counts no more, nor does its word."""
    rig = Rig()
    first = rig.arrive(7000, 1500)
    rig.flows.remove(first)
    rig.protection.remove(first)
    assert not rig.is_protected(first)
    assert rig.flows.num_protected.sum() == 0
    assert rig.is_protected(rig.arrive(7000, 1500))


def test_prompts_under_way_count_until_they_are_done() -> None:
    """By what is left of them, those that stand before."""
    rig = Rig()
    before, behind = make_request(90, 3000), make_request(91, 5000)
    before.start_by_ns, behind.start_by_ns = 1, 9000 * NS_PER_MS
    before.status = behind.status = RequestStatus.RUNNING
    policy = FcfsPolicy(rig.settings)
    step = PolicyStep(policy, under_way=[before, behind], left={before: 2000, behind: 5000})
    rig.under_way.look_at(step)
    assert rig.under_way.tokens_until(1500 * NS_PER_MS) == 2000
    assert not rig.is_protected(rig.arrive(5001, 1500, tenant=1))
    rig.under_way.lose(0)
    assert rig.is_protected(rig.arrive(1999, 1500, tenant=2))


def test_precedence_follows_what_is_configured() -> None:
    """Strict classes first, then by promise, those without one last; each leaves what is known."""
    precedence = Precedence(
        limits_of(
            interactive=ClassConfig(ttft_ms=1000, weight=2),
            standard=ClassConfig(ttft_ms=5000),
            batch=ClassConfig(reserved_step_fraction=0.1),
            administrative=ClassConfig(strict_first=True, max_step_fraction=0.2),
        )
    )
    order = [ADMINISTRATIVE, INTERACTIVE, STANDARD, BATCH]
    for place, one in enumerate(order):
        for other in order[place + 1 :]:
            assert precedence.goes_before(one, other)
            assert not precedence.goes_before(other, one)
    assert precedence.left[INTERACTIVE] == pytest.approx(1 - 0.2 - 0.1)
    assert precedence.left[STANDARD] == pytest.approx(1 - 0.2 - 0.1 - 2 / 5)
    assert precedence.waits_for_windows == [False, True, True, False]
