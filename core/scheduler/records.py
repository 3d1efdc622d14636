"""What is written down when a request changes hands: counters, decisions, rows of a trace.

Owns: which counter and which decision belongs to which transition. Never knows: when a transition
happens, or what it takes.
"""

from core.errors import Rejection
from core.kv_cache.manager import StartQuote
from core.metering import Metering, PreemptionCause, PreemptionKind
from core.policy.base import Blocked
from core.request import Request, RequestStatus
from core.scheduler.decisions import DecisionKind, DecisionLog
from core.scheduler.trace_log import TraceLog
from core.tenancy.classes import TrafficClass

_PREEMPTIONS = {
    PreemptionKind.RECOMPUTE: DecisionKind.PREEMPT,
    PreemptionKind.SWAP: DecisionKind.SWAP,
    PreemptionKind.PARTIAL: DecisionKind.SHORTEN,
}
_ENDS = {
    RequestStatus.FINISHED_SHED: DecisionKind.SHED,
    RequestStatus.FINISHED_EXPIRED: DecisionKind.EXPIRE,
    RequestStatus.FINISHED_ERROR: DecisionKind.FAULT,
}


class Records:
    """The books of one engine core."""

    def __init__(self, metering: Metering, block_size: int) -> None:
        """Start with an empty log; `metering` counts on."""
        self.metering = metering
        self.decisions = DecisionLog()
        self.trace_log = TraceLog()
        self._block_size = block_size
        self._price_epoch = 0

    def demoted(self, request: Request, before: TrafficClass, cap: int, now_ns: int) -> None:
        """Note that a new `request` was moved out of a class that does not take its prompt."""
        self.decisions.note(
            DecisionKind.DEMOTE,
            now_ns,
            request,
            reason=before.label,
            measured=request.prompt_len,
            threshold=cap,
        )

    def waits(
        self, request: Request, replica: int, blocked: Blocked, measured: float,
        threshold: float, now_ns: int,
    ) -> None:  # fmt: skip
        """Note that a request whose turn it is must wait; once for each constraint is enough."""
        request.noted_waits |= 1 << blocked
        kind = DecisionKind.ROUTE if blocked is Blocked.ELSEWHERE else DecisionKind.QUEUE
        self.decisions.note(
            kind,
            now_ns,
            request,
            replica=replica,
            reason=blocked.name.lower(),
            measured=measured,
            threshold=threshold,
        )

    def routed(
        self, request: Request, replica: int, here: float, elsewhere: float, now_ns: int
    ) -> None:
        """Note that a request starts here though it could start elsewhere."""
        self.decisions.note(
            DecisionKind.ROUTE,
            now_ns,
            request,
            replica=replica,
            reason="here",
            measured=here,
            threshold=elsewhere,
        )

    def started(self, request: Request, num_known_tokens: int, now_ns: int) -> None:
        """Count the first start of a request; one that an earlier scheduler has started and counted
        is computed again.
        """
        metering, tenant = self.metering, request.tenant_index
        metering.count_prefix_query(request.num_tokens, num_known_tokens)
        if request.was_started:
            metering.count_recomputed(tenant, request.num_tokens - num_known_tokens)
            return
        traffic_class = request.traffic_class
        metering.count_started(tenant, traffic_class, request.prompt_len, request.num_cached_tokens)
        metering.observe_queue_ns(tenant, traffic_class, now_ns - request.arrival_ns)

    def first_token(self, request: Request, now_ns: int) -> None:
        """Count the first token of a request, and the promise that it breaks."""
        request.first_token_ns = now_ns
        self.metering.prefill_time.observe_ns(now_ns - request.first_start_ns)
        if 0 < request.ttft_deadline_ns < now_ns:
            self.metering.count_deadline_miss(request.tenant_index, request.traffic_class)

    def returned(self, request: Request, replica: int, quote: StartQuote, now_ns: int) -> None:
        """Count what a request that ran before has kept, and what it lost; before it starts."""
        metering = self.metering
        num_lost = max(0, request.num_computed_tokens - quote.num_known)
        metering.count_recomputed(request.tenant_index, num_lost)
        if request.status is RequestStatus.SWAPPED:
            metering.recomputed_after_swap_tokens += num_lost
        if quote.copies:
            metering.swapped_in_tokens += quote.num_known - len(quote.hits) * self._block_size
        self.decisions.note(
            DecisionKind.RESTORE,
            now_ns,
            request,
            replica=replica,
            reason=request.status.name.lower(),
            measured=quote.num_known,
            threshold=request.num_computed_tokens,
        )

    def preempted(
        self, request: Request, kind: PreemptionKind, cause: PreemptionCause, *,
        num_blocks: int, num_available: int, now_ns: int,
    ) -> None:  # fmt: skip
        """Count a running request that gives back `num_blocks`."""
        self.metering.count_preemption(request.tenant_index, kind, cause)
        self.decisions.note(
            _PREEMPTIONS[kind],
            now_ns,
            request,
            replica=request.replica,
            reason=cause.name.lower(),
            measured=num_blocks,
            threshold=num_available,
        )

    def ended(self, request: Request, now_ns: int, *, was_accepted: bool) -> None:
        """Count the end of a request."""
        metering, rejection = self.metering, request.rejection
        self.trace_log.add(request, now_ns)
        metering.count_finished(request.status)
        if rejection is not None:
            metering.count_rejection(request.tenant_index, rejection.reason)
            kind = _ENDS[request.status] if was_accepted else DecisionKind.REJECT
            self._refused(kind, request, rejection, now_ns)
        if request.first_start_ns:
            self._served(request, now_ns)
        if request.status is RequestStatus.FINISHED_EXPIRED and not request.first_token_ns:
            metering.count_deadline_miss(request.tenant_index, request.traffic_class)

    def _served(self, request: Request, now_ns: int) -> None:
        """Count sizes and times of a request that has ended and had started."""
        metering, num_outputs = self.metering, request.num_output_tokens
        metering.e2e_time.observe_ns(now_ns - request.arrival_ns)
        metering.inference_time.observe_ns(now_ns - request.first_start_ns)
        metering.request_prompt_tokens.observe(request.prompt_len)
        metering.request_generation_tokens.observe(num_outputs)
        metering.request_max_tokens.observe(request.max_tokens)
        if request.first_token_ns:
            decode_ns = now_ns - request.first_token_ns
            metering.decode_time.observe_ns(decode_ns)
            if num_outputs > 1 and not request.was_started:
                metering.time_per_token.observe_ns(decode_ns // (num_outputs - 1))

    def epoch(self, replica: int, what: str, epoch: int, num_blocks: int, now_ns: int) -> None:
        """Note that an executor came or went."""
        self.decisions.note(
            DecisionKind.EPOCH,
            now_ns,
            replica=replica,
            reason=what,
            measured=epoch,
            threshold=num_blocks,
        )

    def prices(self, epoch: int, now_ns: int) -> None:
        """Note the epoch of the prices in force if it has changed."""
        if epoch != self._price_epoch:
            self.decisions.note(
                DecisionKind.PRICES,
                now_ns,
                reason="epoch",
                measured=epoch,
                threshold=self._price_epoch,
            )
            self._price_epoch = epoch

    def _refused(
        self, kind: DecisionKind, request: Request, rejection: Rejection, now_ns: int
    ) -> None:
        self.decisions.note(
            kind,
            now_ns,
            request,
            replica=request.replica,
            reason=rejection.reason.code,
            measured=rejection.measured,
            threshold=rejection.threshold,
        )
