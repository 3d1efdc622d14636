"""Those made up that would come if others went on coming as they did lately."""

import pytest

from core.clock import NS_PER_S
from core.policy.lateness.arrival_rates import COMING_MAX, MEMORY_NS, ArrivalRates
from core.policy.lateness.exemptions import Exemptions
from core.policy.limits import Limits
from core.policy.queues.flows import NO_PROMISE_NS, Flows
from core.request import Request
from core.tenancy.classes import NUM_CLASSES, TrafficClass
from tests.support.scheduler.checked_engine import make_request

FAST, SOLE = TrafficClass.INTERACTIVE, TrafficClass.ADMINISTRATIVE


def arriving(
    number: int, now_ns: int, *, kind: TrafficClass = FAST, ttft_s: float = 2.0, tokens: int = 300
) -> Request:
    """Return a request that comes now, is to start a second before its promise, if it has one."""
    request = make_request(number, tokens, arrival_ns=now_ns, traffic_class=kind)
    if ttft_s:
        request.ttft_deadline_ns = now_ns + int(ttft_s * NS_PER_S)
        request.start_by_ns = request.ttft_deadline_ns - NS_PER_S
    return request


def rates_after(seconds: int, per_second: int, **more: float) -> tuple[ArrivalRates, int]:
    """Return the rates after evenly spaced arrivals of one flow, and the time."""
    rates, gap_ns = ArrivalRates(Exemptions(Limits(), Flows())), NS_PER_S // per_second
    now_ns = NS_PER_S
    for number in range(seconds * per_second):
        now_ns += gap_ns
        rates.came(arriving(number, now_ns, **more), now_ns)  # type: ignore[arg-type]
    return rates, now_ns


@pytest.mark.parametrize("seconds", [3, 40])
def test_as_many_come_as_came_a_second(seconds: int) -> None:
    """Four a second, of the same length, evenly spaced, after a short and a long past."""
    rates, now_ns = rates_after(seconds, 4)
    coming = rates.coming(now_ns, now_ns + 10 * NS_PER_S)[FAST]
    assert len(coming) == pytest.approx(40, rel=0.15)
    assert {each.num_tokens for each in coming} <= {299, 300, 301, 302, 303, 304, 298, 297, 296}
    times = [each.come_ns for each in coming]
    assert times == sorted(times)
    assert now_ns < times[0] < times[-1] < now_ns + 10 * NS_PER_S


def test_they_are_promised_what_the_last_one_was() -> None:
    """Each is due as long after it comes as the last one was."""
    rates, now_ns = rates_after(5, 2)
    for each in rates.coming(now_ns, now_ns + NS_PER_S)[FAST]:
        assert each.request is None
        assert each.may_be_shed
        assert each.start_by_ns == each.come_ns + NS_PER_S
        assert each.deadline_ns == each.come_ns + 2 * NS_PER_S


def test_who_may_not_be_refused_is_made_up_so() -> None:
    """An administrative class keeps all of its requests, and so does who was promised nothing."""
    rates, now_ns = rates_after(5, 2, kind=SOLE)
    assert not any(each.may_be_shed for each in rates.coming(now_ns, now_ns + NS_PER_S)[SOLE])
    rates, now_ns = rates_after(5, 2, ttft_s=0.0)
    for each in rates.coming(now_ns, now_ns + NS_PER_S)[FAST]:
        assert (each.deadline_ns, each.may_be_shed) == (0, False)
        assert each.start_by_ns == NO_PROMISE_NS + each.come_ns


def test_who_has_stopped_coming_is_forgotten_in_time() -> None:
    """After one memory a third is left, after many nothing."""
    rates, now_ns = rates_after(40, 4)
    later_ns = now_ns + MEMORY_NS
    assert len(rates.coming(later_ns, later_ns + 10 * NS_PER_S)[FAST]) == pytest.approx(15, abs=2)
    later_ns = now_ns + 10 * MEMORY_NS
    assert rates.coming(later_ns, later_ns + 10 * NS_PER_S) == {}


def test_a_flood_is_made_up_of_few_that_stand_for_several() -> None:
    """A thousand times as many tokens as fit into the requests that may be made up."""
    rates, now_ns = rates_after(5, 400)
    coming = rates.coming(now_ns, now_ns + 60 * NS_PER_S)[FAST]
    assert len(coming) <= COMING_MAX
    assert sum(each.num_tokens for each in coming) == pytest.approx(60 * 400 * 300, rel=0.15)


def test_the_next_tenant_of_an_index_has_sent_nothing() -> None:
    """All four classes of it are forgotten, other tenants are not."""
    rates, now_ns = rates_after(5, 2)
    other = arriving(99, now_ns)
    other.tenant_index = 1
    rates.came(other, now_ns)
    rates.forget_tenant(0)
    assert set(rates.coming(now_ns, now_ns + 60 * NS_PER_S)) == {NUM_CLASSES + FAST}
