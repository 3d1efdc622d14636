"""The engine core: events, plans, results and timers in, plans and outputs out; no I/O, no clock.

Owns: which event asks for which transition, and the four entries below. Never knows: processes,
sockets, rings, text. One core runs in production, in simulation and in fault tests alike.

    on_events(events, now)     also while a step runs: requests are accepted, refused, ended
    next_plan(replica, now)    at a step boundary: decodes, then what the policy grants
    on_result(result, now)     sampled ids, finishes, blocks that became findable
    next_timer()               when to call on_events at the latest, even with no event
    take_outputs()             what happened, per tokenizer
"""

from collections.abc import Iterable, Sequence

from core.clock import NS_PER_MS
from core.errors import Rejection, RejectionReason
from core.metering import Metering, PreemptionCause
from core.policy.base import Policy, Wait
from core.policy.limits import Limits
from core.policy.registry import make_policy
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.scheduler import events as ev
from core.scheduler.admission import no_replica
from core.scheduler.deadlines import DeadlineKind
from core.scheduler.decisions import Decision, DecisionKind
from core.scheduler.plan import OutputBatch, RecordArray, StepPlan, StepResult
from core.scheduler.replica import Replica, ReplicaState
from core.scheduler.scheduler import Scheduler
from core.scheduler.settings import EngineSettings
from core.scheduler.standings import ClassStanding, Standings, TenantStandings
from core.scheduler.statistics import (
    CacheStatistics,
    EngineStatistics,
    RequestView,
    cache_statistics,
    engine_statistics,
    request_view,
)
from core.scheduler.step_builder import StepBuilder
from core.scheduler.step_results import apply_result
from core.scheduler.trace_log import TraceLog
from core.scheduler.waits import with_numbers
from core.tenancy.classes import NUM_CLASSES
from core.tenancy.rows import OTHER


class EngineCore:
    """All scheduling of one engine."""

    def __init__(
        self,
        settings: EngineSettings,
        replicas: Sequence[RecordArray],
        metering: Metering,
        policy: Policy | None = None,
    ) -> None:
        """Start with no executor; `replicas` holds the rows, row_dtype[num_rows], of each.

        `policy` None: the one that `settings` names.
        """
        self.settings = settings
        self.metering = metering
        self._replicas = [Replica(i, rows, settings) for i, rows in enumerate(replicas)]
        self._scheduler = Scheduler(
            settings, self._replicas, policy or configured_policy(settings), metering
        )
        self._standings = Standings(self._scheduler)

    def on_events(self, events: Iterable[ev.Event], now_ns: int) -> None:
        """Take in what happened, in order, and end what is due."""
        for event in events:
            self._on_event(event, now_ns)
        self._expire(now_ns)
        self._scheduler.policy.tend(self._scheduler, now_ns)

    def next_plan(self, replica: int, now_ns: int) -> StepPlan | None:
        """Plan the next step of `replica`; None if it takes no plan or has nothing to compute."""
        target = self._replicas[replica]
        if not target.can_plan:
            return None
        self._expire(now_ns)
        while True:
            builder = StepBuilder(self._scheduler, target, now_ns)
            builder.add_decodes()
            self._scheduler.policy.fill(builder)
            self._scheduler.records.prices(self._scheduler.policy.accounts().price_epoch, now_ns)
            plan = builder.finish()
            if plan is not None or not builder.end_standstill():
                return plan

    def on_result(self, result: StepResult, now_ns: int) -> bool:
        """Take in a result; False = ignored: of another epoch, or of no plan in flight."""
        return apply_result(self._scheduler, self._replicas[result.replica], result, now_ns)

    def next_timer(self) -> int | None:
        """Return when the next deadline passes, ns."""
        times = (self._scheduler.deadlines.next_ns(), self._scheduler.policy.next_timer_ns())
        return min((time for time in times if time is not None), default=None)

    def take_outputs(self) -> dict[int, OutputBatch]:
        """Return and clear what happened since the last call, by tokenizer."""
        return self._scheduler.outputs.take()

    @property
    def num_requests(self) -> int:
        """Requests that are not released yet."""
        return len(self._scheduler.requests)

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused."""
        return self._scheduler.draining

    @property
    def limits(self) -> Limits:
        """The promises and caps in force."""
        return self._scheduler.limits

    @property
    def step(self) -> int:
        """The number of the newest step of any replica."""
        return max(replica.step for replica in self._replicas)

    def statistics(self) -> EngineStatistics:
        """Return the present state in numbers."""
        return engine_statistics(self._scheduler)

    def standings(self, now_ns: int) -> tuple[list[ClassStanding], TenantStandings]:
        """Return what classes have, by value, and tenants."""
        return self._standings.take(now_ns)

    def offer_tenant_rows(self, kept_ns: int, now_ns: int) -> None:
        """Find whose rows in what is counted by tenant others may have, before numbers are shown as
        of `now_ns`; those who sum them have what was shown up to `kept_ns`.
        """
        self._scheduler.offer_tenant_rows(kept_ns, now_ns)

    def leftovers(self) -> dict[str, int]:
        """Return how many tokens steps have left unused while somebody waited, by reason."""
        unused = self._scheduler.policy.leftovers()
        return {reason.name.lower(): tokens for reason, tokens in unused.items()}

    def why(self, request_id: int) -> Wait | None:
        """Return why a request waits, None if it does not or nobody knows."""
        found = self._scheduler.requests.get(request_id)
        if found is None or found not in self._scheduler.waiting:
            return None
        wait = self._scheduler.policy.why(found)
        return None if wait is None else with_numbers(self._scheduler, found, wait)

    def requests(self, limit: int, tenant: str | None = None) -> list[RequestView]:
        """Return up to `limit` live requests, of one `tenant` or all, oldest first."""
        live = self._scheduler.live_requests()
        chosen = [r for r in live if tenant is None or r.tenant == tenant]
        return [request_view(self._scheduler, request) for request in chosen[:limit]]

    @property
    def trace_log(self) -> TraceLog:
        """The requests that have ended."""
        return self._scheduler.records.trace_log

    def request(self, request_id: int) -> RequestView | None:
        """Return one request, None if it is unknown."""
        found = self._scheduler.requests.get(request_id)
        return None if found is None else request_view(self._scheduler, found)

    @property
    def num_decisions(self) -> int:
        """Decisions since the start, kept or not."""
        return self._scheduler.records.decisions.num_decisions

    def decisions(
        self, since: int | None, limit: int, kind: DecisionKind | None = None
    ) -> list[Decision]:
        """Return up to `limit` decisions from number `since` on that are still kept, None = the
        last ones; of one kind or all.
        """
        log = self._scheduler.records.decisions
        return log.last(limit, kind) if since is None else log.since(since, limit, kind)

    def decisions_about(self, request_id: int) -> list[Decision]:
        """Return the decisions about one request that are still kept."""
        return self._scheduler.records.decisions.about(request_id)

    def cache_statistics(self, tenant: str | None = None) -> list[CacheStatistics]:
        """Return what the prefix cache of each replica holds, of one `tenant` or all."""
        flows = None if tenant is None else self._flows_of(tenant)
        return [cache_statistics(replica, flows) for replica in self._replicas]

    def check_integrity(self) -> None:
        """Assert every invariant of the whole state; linear in its size."""
        self._scheduler.check_integrity()

    def _on_event(self, event: ev.Event, now_ns: int) -> None:
        match event:
            case ev.Submit(request):
                self._submit(request, now_ns)
            case ev.Abort(request_id, closed_ns):
                self._abort(self._scheduler.requests.get(request_id), closed_ns or now_ns, now_ns)
            case ev.Stop(request_id, num_output_tokens):
                self._stop(request_id, num_output_tokens, now_ns)
            case ev.ReplicaUp():
                self._replica_up(self._replicas[event.replica], event, now_ns)
            case ev.ReplicaDown(replica):
                self._lose_replica(self._replicas[replica], ReplicaState.DOWN, now_ns)
            case ev.ReplicaGone(replica):
                self._lose_replica(self._replicas[replica], ReplicaState.GONE, now_ns)
            case ev.TokenizerDown(tokenizer):
                for request in self._scheduler.disown(tokenizer):
                    self._abort(request, now_ns, now_ns)
            case ev.CancelTenant(tenant):
                for request in self._scheduler.live_requests():
                    if request.tenant == tenant:
                        self._abort(request, now_ns, now_ns)
            case ev.Drain() | ev.Undrain():
                self._scheduler.draining = isinstance(event, ev.Drain)
            case ev.DrainReplica(replica) | ev.UndrainReplica(replica):
                self._replicas[replica].draining = isinstance(event, ev.DrainReplica)
            case ev.Configure(limits):
                self._scheduler.configure(limits)
                self._end_what_never_fits(now_ns)
            case ev.Preempt(request_id):
                self._preempt(self._scheduler.requests.get(request_id), now_ns)
            case ev.DropCache(tenant):
                flows = None if tenant is None else self._flows_of(tenant)
                for each in self._replicas:
                    each.kv.drop_cached(flows)

    def _submit(self, request: Request, now_ns: int) -> None:
        if request.request_id in self._scheduler.requests:
            self.metering.duplicate_requests += 1
            return
        self._scheduler.accept_or_reject(request, now_ns)
        if request.status is RequestStatus.PREEMPTED:
            self._end_if_complete(request, now_ns)

    def _end_if_complete(self, request: Request, now_ns: int) -> None:
        """End a resumed request whose last token had come before its scheduler died."""
        last_token = int(request.token_ids[request.num_tokens - 1])
        if last_token in self._stop_token_ids(request):
            self._scheduler.finish(request, RequestStatus.FINISHED_STOPPED, now_ns)
        elif request.num_output_tokens >= request.max_tokens:
            self._scheduler.finish(request, RequestStatus.FINISHED_LENGTH, now_ns)

    def _stop_token_ids(self, request: Request) -> tuple[int, ...]:
        sampling = request.sampling
        if request.num_output_tokens < sampling.min_tokens:
            return ()
        eos = () if sampling.ignore_eos else self.settings.eos_token_ids
        return sampling.stop_token_ids + eos

    def _abort(self, request: Request | None, closed_ns: int, now_ns: int) -> None:
        if request is None or request.status.is_finished:
            return
        self._scheduler.finish(
            request, RequestStatus.FINISHED_ABORTED, now_ns, closed_ns=min(closed_ns, now_ns)
        )

    def _preempt(self, request: Request | None, now_ns: int) -> None:
        if request is not None and request.status is RequestStatus.RUNNING:
            self._scheduler.preempt(request, PreemptionCause.OPERATOR, now_ns)

    def _flows_of(self, tenant: str) -> range:
        """Return the indexes of a tenant's flows."""
        index = self.metering.tenant_rows.find(tenant)
        index = OTHER if index is None else index
        return range(index * NUM_CLASSES, (index + 1) * NUM_CLASSES)

    def _stop(self, request_id: int, num_output_tokens: int, now_ns: int) -> None:
        request = self._scheduler.requests.get(request_id)
        if request is None or request.status.is_finished:
            return
        if request.status is RequestStatus.WAITING:  # nothing was delivered that could hold a stop
            self._abort(request, now_ns, now_ns)
        else:
            self._scheduler.stop(request, max(0, num_output_tokens), now_ns)

    def _replica_up(self, replica: Replica, up: ev.ReplicaUp, now_ns: int) -> None:
        if replica.state is ReplicaState.UP:
            self._lose_replica(replica, ReplicaState.DOWN, now_ns)
        replica.come_up(up)
        self._scheduler.records.epoch(replica.index, "up", up.epoch, up.num_blocks, now_ns)
        self._scheduler.policy.replica_up(replica.index, up.basis)
        self._end_what_never_fits(now_ns)

    def _lose_replica(self, replica: Replica, state: ReplicaState, now_ns: int) -> None:
        self._scheduler.records.epoch(
            replica.index, state.name.lower(), replica.epoch, replica.num_blocks, now_ns
        )
        self._scheduler.lose_rows(replica, state, now_ns)
        if state is not ReplicaState.GONE:
            return
        if self._scheduler.routing.has_replica():
            self._end_what_never_fits(now_ns)
            return
        for request in self._scheduler.live_requests():
            self._scheduler.finish(
                request, RequestStatus.FINISHED_ERROR, now_ns, rejection=no_replica()
            )

    def _end_what_never_fits(self, now_ns: int) -> None:
        """Pools or their shares have changed: end waiting requests that none of them can hold."""
        scheduler = self._scheduler
        scheduler.policy.know_pools(scheduler.routing.pools())
        for request in scheduler.waiting.members():
            rejection = scheduler.never_fits(request)
            if rejection is not None:
                scheduler.shed(request, rejection, now_ns)

    def _expire(self, now_ns: int) -> None:
        for kind, request in self._scheduler.deadlines.pop_due(now_ns):
            if request.status.is_finished:
                continue  # both of its deadlines were due
            self._scheduler.finish(
                request,
                RequestStatus.FINISHED_EXPIRED,
                now_ns,
                rejection=_deadline_exceeded(request, kind, now_ns),
            )


def configured_policy(settings: EngineSettings) -> Policy:
    """Return a new policy of the name in `settings`."""
    return make_policy(settings.policy, policy_settings(settings))


def policy_settings(settings: EngineSettings) -> PolicySettings:
    """Return what a policy is told of `settings`."""
    return PolicySettings(
        max_num_partial_prefills=settings.max_num_partial_prefills,
        kv_headroom_fraction=settings.kv_headroom_fraction,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        max_preemptions=settings.max_preemptions,
        block_size=settings.block_size,
        prefix_cache=settings.prefix_cache,
        tuning=settings.tuning,
        limits=settings.limits,
    )


def _deadline_exceeded(request: Request, kind: DeadlineKind, now_ns: int) -> Rejection:
    at_start = kind is DeadlineKind.START
    deadline_ns = request.queue_deadline_ns if at_start else request.end_deadline_ns
    return Rejection(
        RejectionReason.DEADLINE_EXCEEDED,
        0,
        "scheduler.queue_deadline_ms" if at_start else "scheduler.request_timeout_ms",
        (now_ns - request.arrival_ns) / NS_PER_MS,
        (deadline_ns - request.arrival_ns) / NS_PER_MS,
    )
