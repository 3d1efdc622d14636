"""Everything that can happen to an engine core, one method each, with what must hold afterwards.

Owns: a checked engine, all requests ever submitted to it, and what each would get alone. Never
knows: who chooses what happens next, a state machine that can shrink a failure or a swarm of seeds.
Numbers called `which` choose among what is there, whatever their size.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from core.errors import RejectionReason
from core.metering import PreemptionCause
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import OutputKind
from core.scheduler.replica import ReplicaState
from core.tenancy.classes import TrafficClass
from tests.support.scheduler.checked_engine import (
    NS_PER_S,
    CheckedEngine,
    make_settings,
    reference_tokens,
)
from tests.support.scheduler.preempting_policies import WhimsicalPolicy

VOCAB_SIZE = 60  # small, so that EOS and stop tokens are common
NUM_TOKENIZERS = 2
TENANTS = "ab"
MAX_STEPS_TO_END = 20_000


@dataclass(frozen=True)
class Arrival:
    """A request to come."""

    prompt: list[int]
    max_tokens: int
    tenant: str
    tokenizer: int
    priority: int
    traffic_class: TrafficClass
    sampling: SamplingParams
    patience_s: int  # 0 = endless


class EngineHistory:
    """One engine from its start to the end of its last request."""

    def __init__(
        self,
        overrides: Mapping[str, object],
        num_blocks: int,
        num_replicas: int,
        num_host_blocks: int = 0,
        whims: int | None = None,
    ) -> None:
        """Start the first executor only; `whims` is the seed of needless preemptions."""
        settings = make_settings(max_model_len=64, **overrides)
        self.engine = CheckedEngine(
            settings,
            policy=None if whims is None else WhimsicalPolicy(settings, whims),
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            num_replicas=num_replicas,
            num_tokenizers=NUM_TOKENIZERS,
            vocab_size=VOCAB_SIZE,
        )
        self.alone: dict[Request, tuple[list[int], RequestStatus]] = {}
        self.stopped_at: dict[Request, int] = {}
        self.engine.start(0)

    def submit(self, arrival: Arrival) -> None:
        patience_ns = arrival.patience_s * NS_PER_S
        request = self.engine.make_request(
            len(self.alone) + 1,
            arrival.prompt,
            arrival.max_tokens,
            tenant=arrival.tenant,
            tokenizer=arrival.tokenizer,
            priority=arrival.priority,
            traffic_class=arrival.traffic_class,
            sampling=arrival.sampling,
            end_deadline_ns=patience_ns and self.engine.clock.now_ns() + patience_ns,
        )
        self.alone[request] = reference_tokens(
            arrival.prompt, arrival.max_tokens, arrival.sampling, VOCAB_SIZE
        )
        self.engine.submit(request)

    def submit_again(self, which: int) -> None:
        """A second submission of a live request is counted and changes nothing."""
        request = self._live(which)
        if request is not None:
            before = self.engine.metering.duplicate_requests
            self.engine.submit(request)
            assert self.engine.metering.duplicate_requests == before + 1

    def abort(self, which: int) -> None:
        """An abort ends its request and no other."""
        request = self._live(which)
        if request is not None:
            others = [r.status for r in self.alone if r is not request]
            self.engine.tell(ev.Abort(request.request_id))
            assert [r.status for r in self.alone if r is not request] == others
            assert request.status is RequestStatus.FINISHED_ABORTED

    def abort_strangers(self, which: int) -> None:
        """Ids that begin or end like a live one are nobody's."""
        before = [request.status for request in self.alone]
        for request in self.alone:
            for stranger in (request.request_id * 1000, request.request_id + 1000):
                self.engine.tell(ev.Abort(stranger), ev.Stop(stranger, 1))
        assert [request.status for request in self.alone] == before

    def stop(self, which: int) -> None:
        """A stop string is found in one of the tokens delivered so far."""
        request = self._live(which)
        delivered = self.engine.transcript(request).token_ids if request is not None else []
        if request is not None and delivered:
            self.stopped_at[request] = 1 + which % len(delivered)
            self.engine.tell(ev.Stop(request.request_id, self.stopped_at[request]))
            assert request.status is RequestStatus.FINISHED_STOPPED

    def plan(self, which: int) -> None:
        self.engine.plan(which % len(self.engine.executors))

    def answer(self, which: int) -> None:
        replica = which % len(self.engine.executors)
        if self.engine.unanswered[replica]:
            self.engine.answer(replica)

    def steps(self, which: int) -> None:
        """A few whole steps of whichever replica ends first."""
        for _ in range(1 + which % 12):
            self.engine.step()
            self.check()

    def repeat_result(self, which: int) -> None:
        """A result arrives a second time."""
        engine, now_ns = self.engine, self.engine.clock.now_ns()
        executor = engine.executors[0]
        if executor is not None and engine.unanswered[0]:
            plan, _ = engine.unanswered[0].popleft()
            result = executor.execute(plan, now_ns)
            assert engine.core.on_result(result, now_ns)
            assert not engine.core.on_result(result, now_ns)
            engine.collect()

    def lose_result(self, which: int) -> None:
        """The older of two results never arrives."""
        executor, queue = self.engine.executors[0], self.engine.unanswered[0]
        if executor is not None and len(queue) == 2:
            plan, _ = queue.popleft()
            executor.execute(plan, self.engine.clock.now_ns())
            self.engine.answer(0)

    def kill_or_start(self, which: int) -> None:
        replica = which % len(self.engine.executors)
        if self.engine.executors[replica] is None:
            self.engine.start(replica)
        else:
            self.engine.kill(replica)

    def give_up_second(self, which: int) -> None:
        if len(self.engine.executors) == 2:
            self.engine.kill(1, gone=True)

    def cancel_tenant(self, which: int) -> None:
        tenant = TENANTS[which % len(TENANTS)]
        self.engine.tell(ev.CancelTenant(tenant))
        assert all(r.status.is_finished for r in self.alone if r.tenant == tenant)

    def lose_tokenizer(self, which: int) -> None:
        """Its requests end, and it is told nothing more."""
        tokenizer = which % NUM_TOKENIZERS
        owned = [r for r in self.alone if r.tokenizer == tokenizer]
        told = {r: len(self.engine.transcript(r).kinds) for r in owned}
        self.engine.tell(ev.TokenizerDown(tokenizer))
        assert all(r.status.is_finished for r in owned)
        assert all(len(self.engine.transcript(r).kinds) == n for r, n in told.items())

    def wait(self, which: int) -> None:
        """Time passes, and what is due has happened when the core has been told."""
        self.engine.clock.advance((1_000_000, 100_000_000, 1_500_000_000)[which % 3])
        self.engine.tell()
        timer = self.engine.core.next_timer()
        assert timer is None or timer > self.engine.clock.now_ns()

    def drain(self, which: int) -> None:
        self.engine.tell((ev.Drain(), ev.Undrain())[which % 2])

    def drain_replica(self, which: int) -> None:
        replica = which // 2 % len(self.engine.executors)
        self.engine.tell((ev.DrainReplica(replica), ev.UndrainReplica(replica))[which % 2])

    def check(self) -> None:
        """Look at everything that must hold at any time."""
        core, limits = self.engine.core, self.engine.settings
        core.check_integrity()
        metering = self.engine.metering
        assert metering.swapped_in_tokens <= metering.swapped_out_tokens
        num_lost = int(metering.preemptions_by[:, PreemptionCause.LOST_RESULT].sum())
        for request in self.alone:
            assert request.num_preemptions <= limits.max_preemptions + num_lost
        statistics = core.statistics()
        assert statistics.num_waiting <= limits.max_queued_requests
        assert statistics.waiting_tokens <= limits.max_queued_tokens
        for request, (tokens, _) in self.alone.items():
            delivered = self.engine.transcript(request).token_ids
            assert delivered == tokens[: len(delivered)], request.request_id

    def end(self) -> None:
        """Let everything come to its end, and look at what is left."""
        for replica, executor in enumerate(self.engine.executors):
            self.engine.tell(ev.UndrainReplica(replica))
            if executor is None:
                self.engine.start(replica)
        self.engine.run(MAX_STEPS_TO_END)
        self.check()
        for request in self.alone:
            if request.tokenizer >= 0:  # otherwise nobody was there to be told
                self._check_end(request)
        assert self.engine.core.num_requests == 0
        for replica_statistics in self.engine.core.statistics().replicas:
            assert replica_statistics.state is ReplicaState.UP
            assert replica_statistics.pool.num_held == replica_statistics.pool.num_fenced == 0
            assert replica_statistics.host.num_held == 0
        assert int(self.engine.metering.finished.sum()) == len(self.alone)

    def _live(self, which: int) -> Request | None:
        live = [request for request in self.alone if not request.status.is_finished]
        return live[which % len(live)] if live else None

    def _check_end(self, request: Request) -> None:
        transcript = self.engine.transcript(request)
        assert transcript.kinds[-1] is OutputKind.RELEASED
        assert transcript.kinds.count(OutputKind.RELEASED) == 1
        assert transcript.finished is not None
        usage = int(transcript.finished["num_output_tokens"])
        assert usage == self.stopped_at.get(request, len(transcript.token_ids))
        if request in self.stopped_at:
            return
        if request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH):
            assert (transcript.token_ids, transcript.status) == self.alone[request]
            scored = request.sampling.num_prompt_logprobs >= 0
            positions = range(request.prompt_len if scored else 0)
            assert transcript.prompt_logprobs == {p: -float(p) for p in positions}
        elif request.status is RequestStatus.FINISHED_ERROR:
            assert request.rejection is not None
            assert request.rejection.reason is RejectionReason.EXECUTOR_FAULT
            assert request.num_crashes >= self.engine.settings.poison_crashes
