"""Every live request, and every way it can change hands.

Owns: the requests by id, the waiting queue, the replicas, the outputs, and the transitions between
them, each as one method that keeps all of these consistent. Never knows: on which terms a new one
waits (`terms`), where a request may start (`routing`), what is written down of it (`records`), how
a step is filled (`step_builder`), how a result is read (`step_results`), which event asks for what
(`engine_core`).

    accept → start → preempt → start → … → finish → release
    reject                                 (FINISHED)  (RELEASED, no plan in flight names the span)
"""

from dataclasses import dataclass

from core.errors import Rejection, RejectionReason
from core.kv_cache.manager import BlockCopy, StartQuote
from core.metering import Metering, PreemptionCause, PreemptionKind
from core.policy.base import Policy, Relief
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.scheduler.admission import kv_never_fits
from core.scheduler.deadlines import DeadlineHeap
from core.scheduler.outputs import NOBODY, Outputs
from core.scheduler.plan import OutputKind
from core.scheduler.records import Records
from core.scheduler.replica import Fence, Replica, ReplicaState
from core.scheduler.routing import Routing
from core.scheduler.settings import EngineSettings
from core.scheduler.terms import Terms
from core.scheduler.waiting import WaitingQueue
from core.tenancy.classes import NUM_CLASSES


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A request whose client is gone and whose memory is still fenced."""

    closed_ns: int
    replica: int
    acked_step: int


class Scheduler:
    """The state of the engine core and its transitions."""

    def __init__(
        self,
        settings: EngineSettings,
        replicas: list[Replica],
        policy: Policy,
        metering: Metering,
    ) -> None:
        """Start with no request and no executor."""
        self.settings = settings
        self.replicas = replicas
        self.policy = policy
        self.metering = metering
        self.waiting = WaitingQueue(policy, metering)
        self.deadlines = DeadlineHeap()
        self.outputs = Outputs()
        self.records = Records(metering, settings.block_size)
        self.routing = Routing(settings, replicas, policy)
        self.requests: dict[int, Request] = {}  # all that are not released yet
        self.draining = False
        self.limits = settings.limits
        metering.tenant_rows.on_reuse.append(self._forget_tenant)
        metering.know_tenants(settings.limits.tenants)
        self._cancelled: dict[Request, Cancellation] = {}
        self._num_arrivals = 0
        self._terms = Terms(settings, policy, self.routing, self.waiting, self.records)

    def configure(self, limits: Limits) -> None:
        """Let changed promises and caps rule from now on; requests keep what they were promised."""
        self.limits = limits
        self.metering.know_tenants(limits.tenants)
        self.routing.configure(limits)
        self._terms.configure(limits)
        self.policy.configure(limits)

    def offer_tenant_rows(self, kept_ns: int, now_ns: int) -> None:
        """Find whose rows in what is counted by tenant others may have; those who sum it have what
        pages up to `kept_ns` showed. A page of `now_ns` follows.
        """
        busy = {request.tenant_index for request in self.requests.values()}
        self.metering.offer_rows(self.limits.tenants, busy, kept_ns, now_ns)

    def accept_or_reject(self, request: Request, now_ns: int) -> None:
        """Let a new request wait, or answer why it may not."""
        assert len(request.token_ids) >= request.max_length > 0
        self._num_arrivals += 1
        request.order = self._num_arrivals
        request.tenant_index = self.metering.tenant_index(request.tenant)
        self.metering.tenants.requests[request.tenant_index] += not request.was_queued
        rejection = self._terms.refusal(request, now_ns, draining=self.draining)
        if rejection is None:
            self._accept(request)
        else:
            self.finish(request, _status_of(rejection), now_ns, rejection=rejection)

    def start(
        self, request: Request, replica: Replica, quote: StartQuote, now_ns: int
    ) -> list[BlockCopy]:
        """Move a waiting request into a row of `replica`; return the copies that must be made."""
        self.waiting.remove(request, now_ns)
        if request.first_start_ns:
            self.records.returned(request, replica.index, quote, now_ns)
        if request.status is RequestStatus.SWAPPED and request.replica != replica.index:
            self.replicas[request.replica].kv.forget_swapped(request)
        request.move_to(RequestStatus.RUNNING)
        copies = replica.occupy(request, quote)
        request.numerics = replica.offer.numerics
        self.policy.started(request)
        self.metering.tenants.num_running[request.tenant_index] += 1
        if request.first_start_ns == 0:
            self._first_start(request, quote.num_known, now_ns)
        return copies

    def shed(self, request: Request, rejection: Rejection, now_ns: int) -> None:
        """Refuse a waiting `request` that cannot be served as promised."""
        assert request in self.waiting, request.request_id
        self.finish(request, RequestStatus.FINISHED_SHED, now_ns, rejection=rejection)

    def hit_tokens(self, request: Request) -> int:
        """Return how many tokens of a waiting `request` need not be computed, where most is known:
        the prefix cache of a replica holds them, or its host memory.
        """
        return max(replica.kv.hit_tokens(request) for replica in self.replicas)

    def never_fits(self, request: Request) -> Rejection | None:
        """Return why a waiting `request` can start on none of the pools there are."""
        needed, most = self.routing.needed_blocks(request), self.routing.max_pool_blocks()
        if 0 < most < needed:
            return kv_never_fits(needed, most)
        return self.policy.never_fits(request)

    def preempt(
        self,
        request: Request,
        cause: PreemptionCause,
        now_ns: int,
        relief: Relief = Relief.RECOMPUTE,
        max_copies: int = 0,
    ) -> list[BlockCopy]:
        """Take row and memory from a running request; it returns to its place in the queue.

        SWAP becomes RECOMPUTE where it cannot be: see `_swap_out`. Returns the copies that must be
        made before its blocks are written again.
        """
        copies = self._swap_out(request, max_copies) if relief is Relief.SWAP else []
        kind = PreemptionKind.SWAP if copies else PreemptionKind.RECOMPUTE
        self._note_preemption(request, kind, cause, len(request.block_ids), now_ns)
        self._leave_row(request)
        self.requeue(request, RequestStatus.SWAPPED if copies else RequestStatus.PREEMPTED)
        return copies

    def give_back(
        self, request: Request, num_blocks: int, cause: PreemptionCause, now_ns: int
    ) -> None:
        """Take the last `num_blocks` from a running request that keeps others: it becomes a prompt
        under way again, and computes what it has lost when it has blocks for it.
        """
        self._note_preemption(request, PreemptionKind.PARTIAL, cause, num_blocks, now_ns)
        num_lost = self.replicas[request.replica].give_back(request, num_blocks)
        self.policy.shortened(request)
        self.metering.count_recomputed(request.tenant_index, num_lost)

    def requeue(self, request: Request, status: RequestStatus = RequestStatus.PREEMPTED) -> None:
        """Let a request that has just lost its row wait again, at its old place."""
        request.move_to(status)
        self.waiting.add(request)

    def finish(
        self,
        request: Request,
        status: RequestStatus,
        now_ns: int,
        *,
        rejection: Rejection | None = None,
        closed_ns: int = 0,
    ) -> None:
        """End a request from any state: its one terminal record; its release if nothing is fenced.

        `closed_ns` is when the client went away, if it did.
        """
        if closed_ns:
            self._note_cancellation(request, closed_ns)
        self._leave(request, now_ns)
        request.rejection = rejection
        self._end(request, status, now_ns)

    def stop(self, request: Request, num_output_tokens: int, now_ns: int) -> None:
        """End a request at a stop string; what was delivered behind it is not used or cached."""
        if request.replica >= 0:
            kv = self.replicas[request.replica].kv
            kv.retract(request, request.prompt_len + num_output_tokens)
        self._leave(request, now_ns)
        num_delivered = request.num_output_tokens
        request.num_output_tokens = min(num_output_tokens, num_delivered)
        self.metering.overrun_tokens += num_delivered - request.num_output_tokens
        self._end(request, RequestStatus.FINISHED_STOPPED, now_ns)

    def unpin(self, fences: list[Fence], now_ns: int) -> None:
        """Take in that plans were acknowledged: `fences` fell."""
        for fence in fences:
            request = fence.request
            request.num_pins -= 1
            if request.status.is_finished and not request.num_pins:
                self._release(request, now_ns)

    def lose_rows(self, replica: Replica, state: ReplicaState, now_ns: int) -> None:
        """Detach a dead executor; its requests return to their places, poisonous ones end."""
        in_flight = replica.requests_in_flight()
        running = replica.table.running()
        for request in replica.kv.swapped():
            replica.kv.forget_swapped(request)
            self.waiting.lose_copies(request)
        for request in running:
            replica.evict(request)
            self.policy.stopped(request)
            self.metering.tenants.num_running[request.tenant_index] -= 1
        self.unpin(replica.go_down(state), now_ns)
        for request in running:
            request.num_crashes += request in in_flight
            if request.num_crashes < self.settings.poison_crashes:
                self.requeue(request)
            else:
                fault = Rejection(
                    RejectionReason.EXECUTOR_FAULT,
                    0,
                    "scheduler.poison_crashes",
                    request.num_crashes,
                    self.settings.poison_crashes,
                )
                self.finish(request, RequestStatus.FINISHED_ERROR, now_ns, rejection=fault)

    def disown(self, tokenizer: int) -> list[Request]:
        """Make the requests of a dead tokenizer nobody's; return those that have not ended."""
        self.outputs.forget(tokenizer)
        owned = [r for r in self.requests.values() if r.tokenizer == tokenizer]
        for request in owned:
            request.tokenizer = NOBODY
        return [request for request in owned if not request.status.is_finished]

    def live_requests(self) -> list[Request]:
        """Return all requests that have not ended."""
        return [r for r in self.requests.values() if not r.status.is_finished]

    def check_integrity(self) -> None:
        """Assert that every live request is in exactly one place and all parts are whole."""
        self.waiting.check_integrity()
        running = [request for replica in self.replicas for request in replica.table.running()]
        for replica in self.replicas:
            replica.check_integrity()
        waiting = self.waiting.members()
        assert all(request.status is RequestStatus.RUNNING for request in running)
        live = self.live_requests()
        assert {r.request_id for r in running + waiting} == {r.request_id for r in live}
        assert len(running) + len(waiting) == len(live)
        swapped = [(r, each.index) for each in self.replicas for r in each.kv.swapped()]
        assert {r for r, _ in swapped} == {r for r in waiting if r.status is RequestStatus.SWAPPED}
        assert all(request.replica == index for request, index in swapped)
        assert int(self.metering.tenants.num_running.sum()) == len(running)
        for request in self.requests.values():
            assert request.num_pins or not request.status.is_finished, request.request_id
        assert set(self._cancelled) <= set(self.requests.values())

    def _forget_tenant(self, index: int) -> None:
        """Let nothing of the tenant that had this index be found by the one that gets it."""
        self.policy.forget_tenant(index)
        flows = range(index * NUM_CLASSES, (index + 1) * NUM_CLASSES)
        for replica in self.replicas:
            replica.kv.drop_cached(flows)

    def _accept(self, request: Request) -> None:
        self.requests[request.request_id] = request
        num_full_blocks = request.prompt_len // self.settings.block_size
        request.block_digests = list(request.prompt_digests[:num_full_blocks])
        if request.num_output_tokens:  # it has run, under a scheduler that is dead
            request.move_to(RequestStatus.RUNNING)
            request.move_to(RequestStatus.PREEMPTED)
        self.waiting.add(request)
        self._terms.set_deadlines(request, self.deadlines)
        self.outputs.add(request, OutputKind.QUEUED)

    def _first_start(self, request: Request, num_cached_tokens: int, now_ns: int) -> None:
        request.first_start_ns = now_ns
        request.num_cached_tokens = min(num_cached_tokens, request.prompt_len)
        self.records.started(request, num_cached_tokens, now_ns)
        if request.num_output_tokens == 0:
            queue_ns = now_ns - request.arrival_ns
            self.outputs.add(request, OutputKind.STARTED, queue_ns=queue_ns)

    def _swap_out(self, request: Request, max_copies: int) -> list[BlockCopy]:
        """Keep what `request` has computed in host memory; [] = that is not possible.

        What plans in flight compute for it is not known yet, so it is dropped and computed again.
        Log-probabilities of a prompt need states that only its row has, so such a prompt is
        computed in one go.
        """
        replica = self.replicas[request.replica]
        if request.is_being_scored:
            return []
        num_tokens = int(replica.table.num_computed[request.row])
        copies = replica.kv.swap_out(request, num_tokens, max_copies)
        if copies:
            num_shared = request.block_ids.index(copies[0].block_id) * self.settings.block_size
            self.metering.swapped_out_tokens += num_tokens - num_shared
        return copies

    def _note_preemption(
        self,
        request: Request,
        kind: PreemptionKind,
        cause: PreemptionCause,
        num_blocks: int,
        now_ns: int,
    ) -> None:
        is_bounded = cause is PreemptionCause.STANDSTILL
        if not is_bounded or request.num_preemptions < self.settings.max_preemptions:
            request.num_preemptions += 1
        self.records.preempted(
            request,
            kind,
            cause,
            num_blocks=num_blocks,
            num_available=self.replicas[request.replica].kv.pool.num_available,
            now_ns=now_ns,
        )

    def _leave(self, request: Request, now_ns: int) -> None:
        """Take a request that ends out of its row or the queue; a refused one is in neither."""
        if request.row >= 0:
            self._leave_row(request)
        elif request in self.waiting:
            self.waiting.remove(request, now_ns)
            if request.status is RequestStatus.SWAPPED:
                self.replicas[request.replica].kv.forget_swapped(request)

    def _end(self, request: Request, status: RequestStatus, now_ns: int) -> None:
        request.move_to(status)
        was_accepted = request.request_id in self.requests
        if was_accepted:
            self.policy.ended(request, now_ns)
        queue_ns = (request.first_start_ns or now_ns) - request.arrival_ns
        self.outputs.add(request, OutputKind.FINISHED, queue_ns=queue_ns)
        self.records.ended(request, now_ns, was_accepted=was_accepted)
        if not request.num_pins:
            self._release(request, now_ns)

    def _leave_row(self, request: Request) -> None:
        self.metering.tenants.num_running[request.tenant_index] -= 1
        request.num_pins += self.replicas[request.replica].vacate(request)
        self.policy.stopped(request)

    def _note_cancellation(self, request: Request, closed_ns: int) -> None:
        replica = max(request.replica, 0)
        acked_step = self.replicas[replica].acked_step
        self._cancelled[request] = Cancellation(closed_ns, replica, acked_step)

    def _release(self, request: Request, now_ns: int) -> None:
        """No plan in flight names the span of a finished request: forget it."""
        self.outputs.add(request, OutputKind.RELEASED)
        self.requests.pop(request.request_id, None)
        cancelled = self._cancelled.pop(request, None)
        if cancelled is not None:
            num_steps = self.replicas[cancelled.replica].acked_step - cancelled.acked_step
            self.metering.count_reclaim(cancelled.closed_ns, now_ns, num_steps)


def _status_of(rejection: Rejection) -> RequestStatus:
    if rejection.reason is RejectionReason.NO_REPLICA:
        return RequestStatus.FINISHED_ERROR
    return RequestStatus.FINISHED_SHED
