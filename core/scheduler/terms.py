"""On which terms a new request waits: its class, its promises, its deadlines, if it may at all.

Owns: the order in which these are settled. Never knows: how a request waits, or what becomes of it.
The numbers that the engine refuses by are compared in `admission`, those of tenants and classes by
the policy.

A request that an earlier scheduler had let in keeps what it was promised: it is only refused if it
could never start here.
"""

from core.clock import NS_PER_MS
from core.errors import Rejection
from core.policy.base import Policy
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.scheduler.admission import AdmissionState, refusal
from core.scheduler.deadlines import DeadlineHeap, DeadlineKind
from core.scheduler.records import Records
from core.scheduler.routing import Routing
from core.scheduler.settings import EngineSettings
from core.scheduler.waiting import WaitingQueue


class Terms:
    """Those of one engine core."""

    def __init__(
        self,
        settings: EngineSettings,
        policy: Policy,
        routing: Routing,
        waiting: WaitingQueue,
        records: Records,
    ) -> None:
        """Go by the limits in `settings`, and by queue and replicas as they are when asked."""
        self._settings = settings
        self._limits = settings.limits
        self._policy = policy
        self._routing = routing
        self._waiting = waiting
        self._records = records

    def configure(self, limits: Limits) -> None:
        """Let changed promises rule from now on; requests keep what they were promised."""
        self._limits = limits

    def refusal(self, request: Request, now_ns: int, *, draining: bool) -> Rejection | None:
        """Settle class and promises of a new `request`; return why it may not wait."""
        self._classify(request, now_ns)
        state = self._admission_state(request, now_ns, draining=draining)
        rejection = refusal(request, self._settings, state)
        if rejection is not None:
            return rejection
        if request.num_output_tokens:
            return self._policy.never_fits(request)
        self._promise(request)
        return self._policy.refusal(request, now_ns)

    def set_deadlines(self, request: Request, deadlines: DeadlineHeap) -> None:
        """Note in `deadlines` when an accepted `request` must have started and ended: the client
        may want it sooner, not later, than what is configured.
        """
        settings = self._settings
        class_ms = self._limits.of(request.traffic_class).queue_deadline_ms
        start_ns = request.arrival_ns + (class_ms * NS_PER_MS or settings.queue_deadline_ns)
        end_ns = request.arrival_ns + settings.request_timeout_ns
        request.queue_deadline_ns = min(request.queue_deadline_ns or start_ns, start_ns)
        request.end_deadline_ns = min(request.end_deadline_ns or end_ns, end_ns)
        deadlines.add(request.end_deadline_ns, DeadlineKind.END, request)
        if request.status is RequestStatus.WAITING:
            deadlines.add(request.queue_deadline_ns, DeadlineKind.START, request)

    def _classify(self, request: Request, now_ns: int) -> None:
        """Let the policy move a new request to a class that takes it."""
        before = request.traffic_class
        self._policy.classify(request)
        if request.traffic_class is not before:
            cap = self._limits.of(before).max_prompt_tokens
            self._records.demoted(request, before, cap, now_ns)

    def _promise(self, request: Request) -> None:
        """Give a new request what its class promises, unless it brought promises of its own."""
        promised = self._limits.of(request.traffic_class)
        if not request.ttft_deadline_ns and promised.ttft_ms:
            request.ttft_deadline_ns = request.arrival_ns + promised.ttft_ms * NS_PER_MS
        request.itl_cap_ns = request.itl_cap_ns or promised.itl_ms * NS_PER_MS

    def _admission_state(self, request: Request, now_ns: int, *, draining: bool) -> AdmissionState:
        return AdmissionState(
            draining=draining,
            has_replica=self._routing.has_replica(),
            max_pool_blocks=self._routing.max_pool_blocks(),
            needed_blocks=self._routing.needed_blocks(request),
            num_waiting=self._waiting.num_waiting,
            waiting_tokens=self._waiting.waiting_tokens,
            is_shared=len(self._limits.tenants) > 1,
            tenant_waiting=self._waiting.num_waiting_of(request.tenant_index),
            tenant_waiting_tokens=self._waiting.waiting_tokens_of(request.tenant_index),
            retry_after_ms=self._waiting.retry_after_ms(request, now_ns),
        )
