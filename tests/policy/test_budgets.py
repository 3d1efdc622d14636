"""Token-rate budgets: never more than burst + rate × time, however a tenant asks."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from core.clock import NS_PER_S
from core.errors import RejectionReason
from core.policy.hard_limits.budgets import Budgets
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from tests.support.policy.budgets import RATE, TENANT, budgets_of, let_in
from tests.support.policy.gcra import Debit, Reference
from tests.support.scheduler.checked_engine import make_request


def end(
    budgets: Budgets,
    request: Request,
    num_output_tokens: int,
    status: RequestStatus = RequestStatus.FINISHED_STOPPED,
) -> None:
    """End a request that had started."""
    request.first_start_ns = 1
    request.num_output_tokens = num_output_tokens
    request.status = status
    budgets.settle(request)


@given(st.integers(0, 2**32), st.integers(1, 100))
@settings(deadline=None)
def test_no_window_takes_more_than_burst_and_rate_give(seed: int, burst: int) -> None:
    """Over all windows of arrivals, what was used stays within burst + rate × length."""
    rng = random.Random(seed)
    budgets = budgets_of(replace(TENANT, burst_tokens=burst))
    reference, running, now = Reference(), dict[Request, Debit](), 0.0
    for _ in range(60):
        now += rng.choice((0.0, 0.3, 1.0, 20.0))
        if running and rng.random() < 0.4:
            request = rng.choice(list(running))
            debit = running.pop(request)
            num_output = rng.randint(0, request.max_tokens)
            end(budgets, request, num_output)
            debit.time_ns = RATE.time_ns(request.prompt_len + num_output)
            continue
        request = make_request(1, rng.randint(1, burst), rng.randint(1, burst))
        if let_in(budgets, request, now):
            size = request.prompt_len + request.max_tokens
            running[request] = Debit(round(now * NS_PER_S), RATE.time_ns(size))
            reference.debits.append(running[request])
    assert reference.most_ns() <= RATE.time_ns(burst), seed


def test_giving_back_late_gives_no_second_burst() -> None:
    """What the clock has filled meanwhile is not given back once more by a settlement."""
    budgets = budgets_of()
    large = make_request(1, 10, 90)
    assert let_in(budgets, large, 0)
    assert let_in(budgets, make_request(2, 10, 40), 80)
    end(budgets, large, 0)
    assert not let_in(budgets, make_request(3, 10, 90), 80)
    assert let_in(budgets, make_request(4, 10, 40), 80)


def test_a_settlement_gives_back_what_was_not_used() -> None:
    """A short answer to a large max_tokens leaves the rest for the next request, at once."""
    budgets = budgets_of()
    first, second = make_request(1, 10, 90), make_request(2, 10, 70)
    assert let_in(budgets, first, 0)
    assert not let_in(budgets, second, 0)
    end(budgets, first, 5)
    assert let_in(budgets, second, 0)


def test_a_request_larger_than_the_burst_is_refused_for_good() -> None:
    """A cost above the burst never fits: no time to retry, the burst as the threshold."""
    rejection = budgets_of().refusal(make_request(1, 100, 1), 0)
    assert rejection is not None
    assert rejection.reason is RejectionReason.RATE_NEVER_FITS
    assert (rejection.measured, rejection.threshold, rejection.retry_after_ms) == (101, 100, 0)
    assert rejection.knob == "tenants[a].burst_tokens"


def test_a_refusal_says_exactly_when_the_request_fits() -> None:
    """Refused requests conform at the time they were told, and not a millisecond earlier."""
    budgets = budgets_of()
    assert let_in(budgets, make_request(1, 10, 80), 0)
    request = make_request(2, 10, 20)
    rejection = budgets.refusal(request, 0)
    assert rejection is not None
    assert rejection.reason is RejectionReason.TENANT_RATE
    assert (rejection.measured, rejection.threshold) == (30, 10)
    assert rejection.retry_after_ms == 20_000
    assert budgets.refusal(request, 20 * NS_PER_S - 1) is not None
    assert budgets.refusal(request, 20 * NS_PER_S) is None


def test_work_that_never_started_or_was_shed_costs_nothing() -> None:
    """Shed and failed requests, and those cancelled while waiting, are given back whole."""
    for status in (RequestStatus.FINISHED_SHED, RequestStatus.FINISHED_ERROR):
        budgets = budgets_of()
        request = make_request(1, 10, 90)
        assert let_in(budgets, request, 0)
        end(budgets, request, 20, status)
        assert let_in(budgets, make_request(2, 10, 90), 0), status
    budgets = budgets_of()
    waiting = make_request(1, 10, 90)
    assert let_in(budgets, waiting, 0)
    waiting.status = RequestStatus.FINISHED_ABORTED
    budgets.settle(waiting)
    assert let_in(budgets, make_request(2, 10, 90), 0)


def test_a_cancelled_request_costs_what_it_used() -> None:
    """A client that leaves before the end has paid for its prompt and what it got."""
    budgets = budgets_of()
    request = make_request(1, 10, 90)
    assert let_in(budgets, request, 0)
    end(budgets, request, 30, RequestStatus.FINISHED_ABORTED)
    assert not let_in(budgets, make_request(2, 10, 51), 0)
    assert let_in(budgets, make_request(3, 10, 50), 0)


def test_a_second_settlement_gives_nothing() -> None:
    """A request is settled once; another settlement changes nothing."""
    budgets = budgets_of()
    request = make_request(1, 10, 40)
    assert let_in(budgets, request, 0)
    end(budgets, request, 0)
    budget = budgets.of("a")
    assert budget is not None
    tat_ns = budget.tat_ns
    budgets.settle(request)
    assert budget.tat_ns == tat_ns


def test_debt_outlives_a_change_of_the_rate() -> None:
    """A tenant made ten times faster owes the same number of tokens, and pays them faster."""
    budgets = budgets_of()
    request = make_request(1, 50, 50)
    assert let_in(budgets, request, 0)
    faster = replace(TENANT, tokens_per_minute=600)
    budgets.configure(Limits(tenants={"a": faster}), 0)
    assert not let_in(budgets, make_request(2, 5, 6), 1)
    assert let_in(budgets, make_request(3, 5, 5), 1)
    end(budgets, request, 0)
    assert let_in(budgets, make_request(4, 25, 25), 1)
    assert not let_in(budgets, make_request(5, 1, 1), 1)


def test_a_resumed_request_is_debited_for_what_it_has_still_to_come() -> None:
    """After a restart only the tokens not delivered yet are debited, and given back if unused."""
    budgets = budgets_of()
    resumed = make_request(1, 40, 60)
    resumed.num_output_tokens = 20
    budgets.admit(resumed, 0)
    assert not let_in(budgets, make_request(2, 1, 60), 0)
    assert let_in(budgets, make_request(3, 1, 59), 0)
    end(budgets, resumed, 30)
    assert let_in(budgets, make_request(4, 1, 29), 0)
    assert not let_in(budgets, make_request(5, 1, 1), 0)


def test_postpaid_debits_use_and_refuses_while_overdrawn() -> None:
    """A postpaid tenant is let in until it has used more than its burst, then waits."""
    budgets = budgets_of(replace(TENANT, budget_mode="postpaid"))
    budget = budgets.of("a")
    assert budget is not None
    request = make_request(1, 100, 400)
    assert let_in(budgets, request, 0)
    budgets.started(request, 0)
    request.first_start_ns = 1
    budgets.started(request, 0)
    budget.debit(19, 0)
    rejection = budgets.refusal(make_request(2, 1, 1), 0)
    assert rejection is not None
    assert rejection.retry_after_ms == 22_000
    assert budgets.refusal(make_request(3, 1, 1), 20 * NS_PER_S) is None


class Tenant:
    """A tenant that tries to get more than its budget, by a grammar of tricks."""

    def __init__(self, rng: random.Random, budgets: Budgets) -> None:
        self.rng = rng
        self.budgets = budgets
        self.running: list[Request] = []
        self.spent = 0  # prompt and delivered tokens

    def act(self, now_s: float) -> None:
        trick = self.rng.choice((self.ask, self.split, self.cancel, self.finish, self.resubmit))
        trick(now_s)

    def ask(self, now_s: float, size: int = 0) -> None:
        """Ask with a max_tokens that need not be true."""
        size = size or self.rng.randint(2, 120)
        prompt_len = self.rng.randint(1, size - 1)
        request = make_request(1, prompt_len, size - prompt_len)
        if let_in(self.budgets, request, now_s):
            self.running.append(request)

    def split(self, now_s: float) -> None:
        """Ask for the same in pieces."""
        for _ in range(self.rng.randint(2, 20)):
            self.ask(now_s, self.rng.randint(2, 9))

    def cancel(self, now_s: float) -> None:
        """Leave right before the last token, or before the start."""
        if self.running:
            request = self._pop()
            delivered = self.rng.choice((0, max(0, request.max_tokens - 1)))
            self._spend(request, delivered, RequestStatus.FINISHED_ABORTED)

    def finish(self, now_s: float) -> None:
        """Take any part of what was asked for."""
        if self.running:
            request = self._pop()
            delivered = self.rng.randint(0, request.max_tokens)
            self._spend(request, delivered, RequestStatus.FINISHED_STOPPED)

    def resubmit(self, now_s: float) -> None:
        """Cancel and ask for the same again."""
        if self.running:
            size = self.running[-1].prompt_len + self.running[-1].max_tokens
            self.cancel(now_s)
            self.ask(now_s, size)

    def _pop(self) -> Request:
        return self.running.pop(self.rng.randrange(len(self.running)))

    def _spend(self, request: Request, delivered: int, status: RequestStatus) -> None:
        self.spent += request.prompt_len + delivered
        end(self.budgets, request, delivered, status)


@given(st.integers(0, 2**32))
@settings(deadline=None)
def test_no_trick_gets_more_than_the_budget(seed: int) -> None:
    """Splitting, padding, cancelling early, resubmitting: use stays within burst + rate × time."""
    rng = random.Random(seed)
    tenant, now_s = Tenant(rng, budgets_of()), 0.0
    for _ in range(100):
        now_s += rng.choice((0.0, 0.0, 0.5, 5.0))
        tenant.act(now_s)
        assert tenant.spent <= 100 + now_s, seed
