"""When clients that a budget refuses are asked to come back: each at a time of its own."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from core.clock import NS_PER_MS, NS_PER_S
from core.request import Request
from core.token_rate import GRACE_NS, MAX_RETRY_MS, ReturnLine
from tests.support.policy.budgets import RATE, TENANT, budgets_of, let_in
from tests.support.scheduler.checked_engine import make_request


def test_clients_that_keep_to_retry_after_all_succeed() -> None:
    """Of 20 clients at one instant each is let in at its second try, at a time of its own."""
    budgets = budgets_of()
    returns: list[tuple[int, Request]] = []
    for number in range(20):
        request = make_request(number, 10, 20)
        rejection = budgets.refusal(request, 0)
        if rejection is None:
            budgets.admit(request, 0)
        else:
            returns.append((rejection.retry_after_ms, request))
    assert len(returns) == 17
    assert len({retry_ms for retry_ms, _ in returns}) == 17
    for retry_ms, request in returns:
        assert let_in(budgets, request, retry_ms / 1000), retry_ms


@given(st.integers(1, 10**7), st.integers(1, 1000), st.integers(0, 999), st.integers(2, 40))
@settings(deadline=None)
def test_every_client_of_a_crowd_gets_in_at_the_time_it_was_told(
    rate: int, burst: int, less: int, num_clients: int
) -> None:
    """Whatever rate, burst and size, who comes back exactly when told is let in, each alone."""
    size = max(2, burst - less)
    budgets = budgets_of(replace(TENANT, tokens_per_minute=rate, burst_tokens=max(2, burst)))
    now_ns = 1_234_567
    returns: list[tuple[int, Request]] = []
    for number in range(num_clients):
        request = make_request(number, 1, size - 1)
        rejection = budgets.refusal(request, now_ns)
        if rejection is None:
            budgets.admit(request, now_ns)
        else:
            returns.append((now_ns + rejection.retry_after_ms * NS_PER_MS, request))
    within_a_day = [r for r in returns if r[0] < now_ns + MAX_RETRY_MS * NS_PER_MS]
    times = [time_ns for time_ns, _ in within_a_day]
    assert times == sorted(set(times))
    for time_ns, request in within_a_day:
        assert budgets.refusal(request, time_ns) is None
        budgets.admit(request, time_ns)


def test_clients_that_round_up_to_seconds_all_succeed_too() -> None:
    """Spaced times hold for clients that read only the header in whole seconds."""
    budgets = budgets_of(replace(TENANT, tokens_per_minute=6000, burst_tokens=100))
    waiting = []
    for number in range(20):
        request = make_request(number, 10, 20)
        rejection = budgets.refusal(request, 0)
        if rejection is None:
            budgets.admit(request, 0)
        else:
            waiting.append((-(-rejection.retry_after_ms // 1000), request))
    tries = 0
    while waiting:
        tries += 1
        assert tries < 100
        now_s, request = waiting.pop(0)
        rejection = budgets.refusal(request, now_s * NS_PER_S)
        if rejection is None:
            budgets.admit(request, now_s * NS_PER_S)
        else:
            waiting.append((now_s + -(-rejection.retry_after_ms // 1000), request))
        waiting.sort(key=lambda entry: entry[0])


def test_a_return_that_nobody_takes_lapses() -> None:
    """A client that never comes back does not keep the later ones waiting."""
    line, tat_ns = ReturnLine(), RATE.burst_ns
    first_ms = line.join(RATE, tat_ns, 10, 0)
    second_ms = line.join(RATE, tat_ns, 10, 0)
    assert (first_ms, second_ms) == (10_000, 20_000)
    later_ns = first_ms * NS_PER_MS + GRACE_NS + 1
    again_ms = line.join(RATE, later_ns, 100, later_ns)
    assert again_ms == 18_000, "full 10 s after the second client, whether the first came or not"
