"""Token-rate budgets: what each tenant may still use, and when it may use more.

Owns: the budget of every tenant, its reservations, and its refusals. Never knows: queues, steps,
HTTP, how what was not used is given back (`debits`). Cost is in tokens, prompt + output; a cached
prompt token counts as any other, so that what a request costs does not depend on its neighbours.

    strict     at arrival prompt + max_tokens are debited; at the end, once, it is as if only what
               was used had been debited then
    postpaid   nothing at arrival, the prompt and the first token at the start, every further token
               when it is scheduled; while overdrawn nothing new is let in, and nothing starts

Work that was shed or failed costs nothing; what ends before its start neither; what a client
cancels costs what was used. A changed rate keeps the debt in tokens. A restart of the scheduler
loses all debts; requests that live on from before it (`num_output_tokens` > 0) are debited for what
they have still to come.
"""

from dataclasses import dataclass

from core.arrival_limits import is_postpaid, rate_never_fits, rate_used_up
from core.errors import Rejection
from core.policy.hard_limits.debits import Debits
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.tenancy.tenants import TenantConfig
from core.token_rate import ReturnLine, TokenRate

FREE = frozenset({RequestStatus.FINISHED_SHED, RequestStatus.FINISHED_ERROR})


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a request was let in with."""

    number: int  # of its open debit
    num_tokens: int
    num_free_tokens: int  # used before a restart, paid then


class Budget:
    """One tenant's budget."""

    def __init__(self, settings: TenantConfig, rate: TokenRate) -> None:
        """Start with a full bucket."""
        self.settings = settings
        self.rate = rate
        self._debits = Debits()
        self._returns = ReturnLine()
        self._reservations: dict[Request, Reservation] = {}

    @property
    def is_postpaid(self) -> bool:
        """Whether it is debited as it is used."""
        return is_postpaid(self.settings)

    @property
    def tat_ns(self) -> int:
        """When the bucket is full again; in the past, it is."""
        return self._debits.tat_ns

    @property
    def ready_ns(self) -> int:
        """When it is overdrawn no more."""
        return self.tat_ns - self.rate.burst_ns

    def configure(self, settings: TenantConfig, rate: TokenRate, now_ns: int) -> None:
        """Take over a changed rate and mode; the debt stays the same number of tokens."""
        old = self.rate
        self.settings = settings
        self.rate = rate
        if rate.tokens_per_minute != old.tokens_per_minute:
            self._debits.rescale(old.tokens_per_minute, rate.tokens_per_minute, now_ns)

    def refusal(self, request: Request, now_ns: int) -> Rejection | None:
        """Return why `request` may not be let in now."""
        num_tokens, rate = request.max_length, self.rate
        needed = 0 if self.is_postpaid else num_tokens
        if rate.ready_ns(self.tat_ns, needed, now_ns) <= now_ns:
            return None
        return rate_used_up(
            self.settings,
            num_tokens,
            rate.tokens_left(self.tat_ns, now_ns),
            self._returns.join(rate, self.tat_ns, num_tokens, now_ns),
        )

    def admit(self, request: Request, now_ns: int) -> None:
        """Debit what `request` may come to use, unless that is done as it uses it."""
        self._returns.leave(now_ns)
        if self.is_postpaid:
            return
        num_free = request.num_tokens if request.num_output_tokens else 0
        num_tokens = request.max_length - num_free
        number = self._debits.open(self.rate.time_ns(num_tokens), now_ns)
        self._reservations[request] = Reservation(number, num_tokens, num_free)

    def started(self, request: Request, now_ns: int) -> None:
        """Debit the prompt and the token that follows it, if `request` is not paid already."""
        if self.is_postpaid and request.first_start_ns == 0 and request not in self._reservations:
            prompt_len = 0 if request.num_output_tokens else request.prompt_len
            self.debit(prompt_len + 1, now_ns)

    def debit(self, num_tokens: int, now_ns: int) -> None:
        """Debit what was used."""
        self._debits.debit(self.rate.time_ns(num_tokens), now_ns)

    def settle(self, request: Request) -> None:
        """Give back what an ended `request` has not used."""
        reservation = self._reservations.pop(request, None)
        if reservation is None:
            return
        used = used_tokens(request, reservation.num_free_tokens)
        debited_ns = self.rate.time_ns(reservation.num_tokens)
        self._debits.close(reservation.number, debited_ns - self.rate.time_ns(used))


class Budgets:
    """The budgets of all tenants that have one."""

    def __init__(self, limits: Limits) -> None:
        """Start with full buckets."""
        self._budgets: dict[str, Budget] = {}
        self.configure(limits, 0)

    def configure(self, limits: Limits, now_ns: int) -> None:
        """Take over changed rates; a budget that is gone is forgotten."""
        known, self._budgets = self._budgets, {}
        for name, settings in limits.tenants.items():
            rate = TokenRate.of(settings)
            if rate is None:
                continue
            budget = known.get(name) or Budget(settings, rate)
            budget.configure(settings, rate, now_ns)
            self._budgets[name] = budget

    def of(self, tenant: str) -> Budget | None:
        """Return the budget of a tenant, None if it has none."""
        return self._budgets.get(tenant)

    def tats_ns(self) -> dict[str, int]:
        """Return when each bucket is full again, by tenant."""
        return {name: budget.tat_ns for name, budget in self._budgets.items()}

    def tokens_left(self, now_ns: int) -> dict[str, int]:
        """Return what conforms now, tokens, by tenant."""
        return {
            name: budget.rate.tokens_left(budget.tat_ns, now_ns)
            for name, budget in self._budgets.items()
        }

    def refusal(self, request: Request, now_ns: int) -> Rejection | None:
        """Return why the budget of its tenant does not let `request` in now."""
        budget = self.of(request.tenant)
        if budget is None:
            return None
        num_tokens = request.max_length
        return rate_never_fits(budget.settings, num_tokens) or budget.refusal(request, now_ns)

    def admit(self, request: Request, now_ns: int) -> None:
        """Take in that `request` was let in."""
        budget = self.of(request.tenant)
        if budget is not None:
            budget.admit(request, now_ns)

    def started(self, request: Request, now_ns: int) -> None:
        """Take in that `request` has a row."""
        budget = self.of(request.tenant)
        if budget is not None:
            budget.started(request, now_ns)

    def settle(self, request: Request) -> None:
        """Take in the end of a request that was let in."""
        budget = self.of(request.tenant)
        if budget is not None:
            budget.settle(request)


def used_tokens(request: Request, num_free_tokens: int = 0) -> int:
    """Return what an ended request costs, besides what was paid before."""
    if request.status in FREE or request.first_start_ns == 0:
        return 0
    return request.num_tokens - num_free_tokens
