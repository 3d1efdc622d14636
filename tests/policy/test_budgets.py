"""Token-rate budgets: never more than burst + rate × time, however a tenant asks."""

import random
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core.clock import NS_PER_MS, NS_PER_S
from core.errors import RejectionReason
from core.policy.budgets import Budgets, Ledger
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.tenancy import TenantConfig
from core.token_rate import GRACE_NS, MAX_RETRY_MS, ReturnLine, TokenRate
from tests.support.scheduling import make_request

RATE = TokenRate(tokens_per_minute=60, burst_tokens=100)  # a token a second
TENANT = TenantConfig(name="a", tokens_per_minute=60, burst_tokens=100)


def budgets_of(tenant: TenantConfig = TENANT) -> Budgets:
    """Return the budgets of one tenant."""
    return Budgets(Limits(tenants={tenant.name: tenant}))


def let_in(budgets: Budgets, request: Request, now_s: float) -> bool:
    """Ask, and be debited if the answer is yes."""
    now_ns = round(now_s * NS_PER_S)
    if budgets.refusal(request, now_ns) is not None:
        return False
    budgets.admit(request, now_ns)
    return True


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


@dataclass
class Debit:
    """A debit as the reference knows it."""

    at_ns: int
    time_ns: int
    number: int = 0


@dataclass
class Reference:
    """GCRA computed anew from all debits, each as large as it is known to be now."""

    debits: list[Debit] = field(default_factory=list)

    def tat_ns(self) -> int:
        tat = 0
        for debit in self.debits:
            tat = max(tat, debit.at_ns) + debit.time_ns
        return tat

    def most_ns(self) -> int:
        """Return the most that any window of arrivals took beyond its own length."""
        most = 0
        for first, start in enumerate(self.debits):
            total = 0
            for debit in self.debits[first:]:
                total += debit.time_ns
                most = max(most, total - (debit.at_ns - start.at_ns))
        return most


Steps = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 100), st.floats(0.0, 1.0), st.booleans()),
    max_size=40,
)


@given(Steps)
@settings(deadline=None)
def test_a_ledger_is_as_if_every_debit_had_been_what_was_used(
    steps: list[tuple[int, int, float, bool]],
) -> None:
    """After any debits and settlements the TAT is that of a bucket that knew the use beforehand."""
    ledger, reference, open_debits, now = Ledger(), Reference(), list[Debit](), 0
    for wait, amount, share, opens in steps:
        now += wait
        if opens or not open_debits:
            debit = Debit(now, amount, ledger.open(amount, now))
            reference.debits.append(debit)
            open_debits.append(debit)
        else:
            debit = open_debits.pop(amount % len(open_debits))
            excess = int(debit.time_ns * share)
            debit.time_ns -= excess
            ledger.close(debit.number, excess)
        assert max(ledger.tat_ns, now) == max(reference.tat_ns(), now)


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


def test_many_open_debits_cost_little_memory_and_settle_in_any_order() -> None:
    """Thousands of open debits, closed at random, leave nothing behind."""
    ledger, rng = Ledger(), np.random.default_rng(1)
    numbers = np.array([ledger.open(2, now) for now in range(3000)])
    for number in rng.permutation(numbers).tolist():
        ledger.close(number, 1)
    assert ledger.tat_ns == 3000
    assert ledger.num_open == 0
