"""The hard limits of tenants and classes: who may not wait, and who may wait but not start.

Owns: the order of the questions. The answers are in `arrivals` (queues, prompts, pauses), `budgets`
(token rates) and `start_limits` (what runs). Never knows: whose turn it is, or which blocks are
whose.

    at arrival       class of the tenant, prompt cap of the class, what can never fit, paused, queue
                     of the tenant, token rate: the first one that is broken is the `Rejection`
    before a start   paused, replica, token rate, concurrency, sequences and reserves of classes, KV
                     shares: a `Blocked`, for all flows at once (`open`), for one head (`blocked`)

Requests that were admitted before the scheduler restarted meet no limit at arrival. Tenants beyond
those that are counted one by one (`core.tenancy.rows.OTHER`) meet none of their own before a start.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_MS
from core.errors import Rejection
from core.policy.base import Blocked, DecodeBatch, ReplicaLoad
from core.policy.hard_limits.arrivals import Arrivals
from core.policy.hard_limits.budgets import Budgets
from core.policy.hard_limits.start_limits import Reasons, StartLimits
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.tenancy.classes import TrafficClass
from core.tenancy.rows import OTHER, OTHER_NAME

Mask = npt.NDArray[np.bool_]

DEBIT_NS = 20 * NS_PER_MS  # what postpaid tenants are given is debited this often


class Gates:
    """All limits of one engine core."""

    def __init__(self, settings: PolicySettings) -> None:
        """Start with nobody waiting or running."""
        self._limits = settings.limits
        self._budgets = Budgets(settings.limits)
        self._arrivals = Arrivals(settings.limits, settings.block_size)
        self._starts = StartLimits(settings.limits, settings.block_size, settings.max_num_seqs)
        self._now_ns = 0
        self._debited_ns = 0
        self._wake_ns: int | None = None
        self._names: list[str] = []  # of tenants, by index
        self._admitted: set[Request] = set()
        self._num_waiting = np.zeros(0, np.int64)  # by tenant: preempted ones included
        self._given_tokens = np.zeros(0, np.int64)  # to postpaid tenants, not debited yet
        self._is_postpaid: Mask = np.zeros(0, np.bool_)
        self._is_overdrawn: Mask = np.zeros(0, np.bool_)
        self._has_postpaid = False

    def configure(self, limits: Limits) -> None:
        """Let changed limits rule from now on; what runs is not stopped by them."""
        self._limits = limits
        self._arrivals.limits = limits
        self._budgets.configure(limits, self._now_ns)
        self._lay_out()

    def classify(self, request: Request) -> None:
        """Demote a new `request` whose prompt its class does not take, if the class says so."""
        self._arrivals.classify(request)

    def refusal(self, request: Request, now_ns: int) -> Rejection | None:
        """Return why a new `request` may not wait."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._arrivals.refusal(request, now_ns) or self._budgets.refusal(request, now_ns)

    def know_pools(self, num_blocks: Mapping[int, int]) -> None:
        """Take in how large the pools are, by replica; 0 = that is not known."""
        self._arrivals.pools = dict(num_blocks)

    def never_fits(self, request: Request) -> Rejection | None:
        """Return why `request` could never start, whatever else runs."""
        return self._arrivals.never_fits(request)

    def add(self, request: Request) -> None:
        """Take in that `request` waits; when it is new its budget is debited."""
        self._know(request)
        self._num_waiting[request.tenant_index] += 1
        if request.status is RequestStatus.WAITING:
            self._arrivals.add(request)
        if request not in self._admitted:
            self._admitted.add(request)
            self._budgets.admit(request, max(self._now_ns, request.arrival_ns))

    def remove(self, request: Request) -> None:
        """Take in that `request` waits no more, before its status changes."""
        self._num_waiting[request.tenant_index] -= 1
        if request.status is RequestStatus.WAITING:
            self._arrivals.remove(request, self._now_ns)

    def started(self, request: Request) -> None:
        """Take in that `request` has a row of `request.replica`."""
        self._starts.started(request)
        self._budgets.started(request, self._now_ns)

    def stopped(self, request: Request) -> None:
        """Take in that `request` has lost its row."""
        self._starts.stopped(request)

    def ended(self, request: Request, now_ns: int) -> None:
        """Settle the budget of a request that had been let in."""
        self._now_ns = max(self._now_ns, now_ns)
        self._admitted.discard(request)
        self._budgets.settle(request)

    def forget_tenant(self, index: int) -> None:
        """Let the next tenant of this index have nothing to pay for what this one was given."""
        if index < len(self._names):
            assert not self._num_waiting[index], index
            self._names[index] = ""
            self._given_tokens[index] = 0
            self._lay_out()

    def open(self, decodes: DecodeBatch, load: ReplicaLoad, now_ns: int) -> Reasons:
        """Return what keeps each flow from starting anything in a step, `Blocked` as int8[flows].

        `decodes` are the tokens that the step gives, which postpaid tenants pay for.
        """
        self._now_ns = max(self._now_ns, now_ns)
        self._starts.know_pool(load.replica, load.num_blocks)
        reasons = self._starts.reasons(load.replica)
        if self._has_postpaid:
            self._debit(decodes)
            self._look_for_debt()
            rate = np.where(self._is_overdrawn, np.int8(Blocked.RATE), np.int8(0))[:, None]
            reasons = np.where(reasons, reasons, rate)
        return reasons.reshape(-1)

    def blocked(self, request: Request, replica: int) -> Blocked:
        """Return what keeps a waiting `request` from starting now, after all that has started in
        the step that was opened for `replica`.
        """
        if self._has_postpaid and self._is_overdrawn[request.tenant_index]:
            return Blocked.RATE
        return self._starts.blocked(request, replica)

    def blocked_everywhere(self, request: Request) -> Blocked:
        """Return what keeps a waiting `request` from starting on any replica that has planned."""
        if self._has_postpaid and self._is_overdrawn[request.tenant_index]:
            return Blocked.RATE
        return self._starts.blocked_everywhere(request)

    def numbers(self, request: Request, blocked: Blocked) -> tuple[float, float]:
        """Return the two numbers that were compared when `blocked` kept `request` back; (0, 0) if
        it is none of the limits here. Of a token rate: the debt and the burst, ms.
        """
        budget = self._budgets.of(request.tenant)
        if blocked is Blocked.RATE and budget is not None:
            debt_ns = budget.tat_ns - self._now_ns
            return debt_ns / NS_PER_MS, budget.rate.burst_ns / NS_PER_MS
        return self._starts.numbers(request, blocked)

    def ready_ns(self, request: Request) -> int:
        """Return when the token rate of its tenant lets a waiting `request` start."""
        budget = self._budgets.of(request.tenant)
        return 0 if budget is None else budget.ready_ns

    def owed_rows(self, replica: int) -> dict[TrafficClass, int]:
        """Return how many rows each class may still claim of its reserve, if any."""
        return self._starts.owed_rows(replica)

    def tend(self, now_ns: int) -> None:
        """Take in that time has passed."""
        if self._wake_ns is not None and self._wake_ns <= now_ns:
            self._wake_ns = None

    def next_timer_ns(self) -> int | None:
        """Return when a tenant that waits has paid its debt, None if nobody waits for that."""
        return self._wake_ns

    def tats_ns(self) -> dict[str, int]:
        """Return when the bucket of each tenant that has one is full again."""
        return self._budgets.tats_ns()

    def tokens_left(self, now_ns: int) -> dict[str, int]:
        """Return what each tenant that has a budget may use at once."""
        return self._budgets.tokens_left(now_ns)

    def check_integrity(self) -> None:
        """Assert that all counts are those of the requests."""
        self._starts.check_integrity()
        assert np.all(self._num_waiting >= 0)

    def _know(self, request: Request) -> None:
        """Make room for the tenant of `request`."""
        missing = request.tenant_index + 1 - len(self._names)
        name = OTHER_NAME if request.tenant_index == OTHER else request.tenant
        if missing <= 0 and self._names[request.tenant_index] == name:
            return
        self._names += [""] * missing
        self._names[request.tenant_index] = name
        self._num_waiting = np.pad(self._num_waiting, (0, max(0, missing)))
        self._given_tokens = np.pad(self._given_tokens, (0, max(0, missing)))
        self._lay_out()

    def _lay_out(self) -> None:
        """Take over limits and names into arrays."""
        self._starts.configure(self._limits, self._names)
        budgets = [self._budgets.of(name) for name in self._names]
        self._is_postpaid = np.array([b is not None and b.is_postpaid for b in budgets], np.bool_)
        self._is_overdrawn = np.zeros(len(budgets), np.bool_)
        self._has_postpaid = bool(self._is_postpaid.any())

    def _debit(self, decodes: DecodeBatch) -> None:
        """Let postpaid tenants pay for what they are given, the tokens of many steps at once."""
        counts: npt.NDArray[np.int64] = np.bincount(
            decodes.tenant_index, minlength=len(self._names)
        )
        self._given_tokens += counts * self._is_postpaid
        if self._now_ns - self._debited_ns < DEBIT_NS:
            return
        self._debited_ns = self._now_ns
        for index in np.flatnonzero(self._given_tokens).tolist():
            budget = self._budgets.of(self._names[index])
            if budget is not None:
                budget.debit(int(self._given_tokens[index]), self._now_ns)
        self._given_tokens[:] = 0

    def _look_for_debt(self) -> None:
        """Find the tenants that have to wait, and note when the first need not."""
        self._is_overdrawn[:] = False
        ready_ns = []
        for index in np.flatnonzero(self._is_postpaid & (self._num_waiting > 0)).tolist():
            budget = self._budgets.of(self._names[index])
            if budget is not None and budget.ready_ns > self._now_ns:
                self._is_overdrawn[index] = True
                ready_ns.append(budget.ready_ns)
        self._wake_ns = min(ready_ns, default=None)
