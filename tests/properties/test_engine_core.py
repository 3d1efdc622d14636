"""The engine core under random histories: whatever happens to neighbours, executors and the clock,
every request gets the tokens it would get alone, ends once, and leaves nothing behind.

A rule of the machine is one thing that can happen; after each, the core checks its own integrity
and the machine compares what was delivered with the reference.
"""

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from core.config import TrafficClass
from core.errors import RejectionReason
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import OutputKind, StepResult
from core.scheduler.replica import ReplicaState
from tests.support.scheduling import NS_PER_S, CheckedEngine, make_settings, reference_tokens

VOCAB_SIZE = 60  # small, so that EOS and stop tokens are common
NUM_TOKENIZERS = 2
PREFIXES: tuple[list[int], ...] = ([10, 11, 12, 13, 14, 15, 16, 17, 18], [20, 21, 22, 23], [])

SETTINGS = st.fixed_dictionaries(
    {
        "pipeline_depth": st.sampled_from([1, 2]),
        "policy": st.sampled_from(["fcfs", "priority", "static"]),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.integers(6, 24),
        "max_num_partial_prefills": st.integers(1, 3),
        "max_preemptions": st.integers(0, 3),
        "kv_headroom_fraction": st.sampled_from([0.0, 0.1, 0.3]),
        "prefix_cache": st.booleans(),
        "max_queued_requests": st.sampled_from([4, 100]),
        "max_queued_tokens": st.sampled_from([120, 10_000]),
    }
)
SAMPLING = st.builds(
    SamplingParams,
    seed=st.integers(0, 3),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 3),
    stop_token_ids=st.sampled_from([(), (3,), (4, 5)]),
    num_logprobs=st.sampled_from([-1, 0, 2]),
    num_prompt_logprobs=st.sampled_from([-1, -1, 0, 1]),
)


class EngineCoreMachine(RuleBasedStateMachine):
    """One engine and everything that was ever submitted to it."""

    @initialize(overrides=SETTINGS, num_blocks=st.integers(6, 30), num_replicas=st.integers(1, 2))
    def build(self, overrides: dict[str, object], num_blocks: int, num_replicas: int) -> None:
        self.engine = CheckedEngine(
            make_settings(max_model_len=64, **overrides),
            num_blocks=num_blocks,
            num_replicas=num_replicas,
            num_tokenizers=NUM_TOKENIZERS,
            vocab_size=VOCAB_SIZE,
        )
        self.requests: list[Request] = []
        self.stopped_at: dict[int, int] = {}
        self.answered: list[StepResult] = []
        self.engine.start(0)

    def pick(self, data: st.DataObject) -> Request:
        assume(self.requests)
        return data.draw(st.sampled_from(self.requests))

    def replica(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.engine.executors) - 1))

    @rule(
        prefix=st.sampled_from(PREFIXES),
        tail=st.lists(st.integers(8, VOCAB_SIZE - 1), min_size=1, max_size=24),
        max_tokens=st.integers(0, 20),
        tenant=st.sampled_from("ab"),
        tokenizer=st.integers(0, NUM_TOKENIZERS - 1),
        priority=st.integers(-1, 1),
        traffic_class=st.sampled_from(list(TrafficClass)),
        sampling=SAMPLING,
        patience_s=st.sampled_from([0, 0, 0, 1]),
    )
    def submit(
        self,
        prefix: list[int],
        tail: list[int],
        max_tokens: int,
        tenant: str,
        tokenizer: int,
        priority: int,
        traffic_class: TrafficClass,
        sampling: SamplingParams,
        patience_s: int,
    ) -> None:
        deadline_ns = self.engine.clock.now_ns() + patience_s * NS_PER_S if patience_s else 0
        request = self.engine.make_request(
            len(self.requests) + 1,
            prefix + tail,
            max_tokens,
            tenant=tenant,
            tokenizer=tokenizer,
            priority=priority,
            traffic_class=traffic_class,
            sampling=sampling,
            end_deadline_ns=deadline_ns,
        )
        self.requests.append(request)
        self.engine.submit(request)

    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        request = self.pick(data)
        assume(self.engine.core.request(request.request_id) is not None)
        before = self.engine.metering.duplicate_requests
        self.engine.submit(request)
        assert self.engine.metering.duplicate_requests == before + 1

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = self.pick(data)
        ended = [r.status for r in self.requests if r is not request]
        self.engine.tell(ev.Abort(request.request_id))
        assert [r.status for r in self.requests if r is not request] == ended

    @rule(request_id=st.integers(10_000, 10_010))
    def abort_unknown(self, request_id: int) -> None:
        self.engine.tell(ev.Abort(request_id), ev.Stop(request_id, 1))

    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        request = self.pick(data)
        num_delivered = len(self.engine.transcript(request).token_ids)
        assume(num_delivered and not request.status.is_finished)
        kept = data.draw(st.integers(1, num_delivered))
        self.stopped_at[request.request_id] = kept
        self.engine.tell(ev.Stop(request.request_id, kept))
        assert request.status is RequestStatus.FINISHED_STOPPED

    @rule(tenant=st.sampled_from("ab"))
    def cancel_tenant(self, tenant: str) -> None:
        self.engine.tell(ev.CancelTenant(tenant))
        assert all(r.status.is_finished for r in self.requests if r.tenant == tenant)

    @rule(tokenizer=st.integers(0, NUM_TOKENIZERS - 1))
    def lose_tokenizer(self, tokenizer: int) -> None:
        owned = [r for r in self.requests if r.tokenizer == tokenizer]
        told = {r: len(self.engine.transcript(r).kinds) for r in owned}
        self.engine.tell(ev.TokenizerDown(tokenizer))
        assert all(r.status.is_finished for r in owned)
        assert all(len(self.engine.transcript(r).kinds) == n for r, n in told.items())

    @rule(data=st.data())
    def plan(self, data: st.DataObject) -> None:
        self.engine.plan(self.replica(data))

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        replica = self.replica(data)
        assume(self.engine.unanswered[replica])
        self.engine.answer(replica)

    @rule()
    def step(self) -> None:
        self.engine.step()

    @rule(data=st.data())
    def repeat_result(self, data: st.DataObject) -> None:
        """A result of an acknowledged step, or of an executor that is dead, arrives (again)."""
        assume(self.engine.executors[0] is not None and not self.engine.unanswered[0])
        plan = self.engine.plan(0)
        assume(plan is not None and self.engine.executors[0] is not None)
        assert plan is not None
        executor = self.engine.executors[0]
        assert executor is not None
        result = executor.execute(plan, self.engine.clock.now_ns())
        self.engine.unanswered[0].clear()
        now_ns = self.engine.clock.now_ns()
        assert self.engine.core.on_result(result, now_ns)
        assert not self.engine.core.on_result(result, now_ns)
        self.engine.collect()

    @rule()
    def lose_result(self) -> None:
        """The older of two results never arrives."""
        queue = self.engine.unanswered[0]
        assume(len(queue) == 2)
        executor = self.engine.executors[0]
        assert executor is not None
        plan, _ = queue.popleft()
        executor.execute(plan, self.engine.clock.now_ns())
        self.engine.answer(0)

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        replica = self.replica(data)
        assume(self.engine.executors[replica] is not None)
        self.engine.kill(replica)

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        replica = self.replica(data)
        assume(self.engine.executors[replica] is None)
        self.engine.start(replica)

    @precondition(lambda self: len(self.engine.executors) == 2)
    @rule()
    def give_up_second(self) -> None:
        self.engine.kill(1, gone=True)

    @rule(duration_ms=st.sampled_from([1, 100, 1500]))
    def wait(self, duration_ms: int) -> None:
        self.engine.clock.advance(duration_ms * 1_000_000)
        self.engine.tell()
        timer = self.engine.core.next_timer()
        assert timer is None or timer > self.engine.clock.now_ns()

    @rule(draining=st.booleans())
    def drain(self, draining: bool) -> None:
        self.engine.tell(ev.Drain() if draining else ev.Undrain())

    @rule(data=st.data(), draining=st.booleans())
    def drain_replica(self, data: st.DataObject, draining: bool) -> None:
        replica = self.replica(data)
        event = ev.DrainReplica(replica) if draining else ev.UndrainReplica(replica)
        self.engine.tell(event)

    @invariant()
    def is_whole(self) -> None:
        if hasattr(self, "engine"):
            self.engine.core.check_integrity()

    @invariant()
    def queue_is_bounded(self) -> None:
        if hasattr(self, "engine"):
            statistics, limits = self.engine.core.statistics(), self.engine.settings
            assert statistics.num_waiting <= limits.max_queued_requests
            assert statistics.waiting_tokens <= limits.max_queued_tokens

    @invariant()
    def delivers_only_what_is_due(self) -> None:
        for request in getattr(self, "requests", []):
            expected, _ = self.expected(request)
            delivered = self.engine.transcript(request).token_ids
            assert delivered == expected[: len(delivered)], request.request_id

    def expected(self, request: Request) -> tuple[list[int], RequestStatus]:
        prompt = request.token_ids[: request.prompt_len].tolist()
        return reference_tokens(prompt, request.max_tokens, request.sampling, VOCAB_SIZE)

    def teardown(self) -> None:
        """Let everything come to its end and look at what is left."""
        if not hasattr(self, "engine"):
            return
        for replica, executor in enumerate(self.engine.executors):
            self.engine.tell(ev.UndrainReplica(replica))
            if executor is None:
                self.engine.start(replica)
        self.engine.run(max_steps=20_000)
        for request in self.requests:
            self.check_end(request)
        assert self.engine.core.num_requests == 0
        for replica_statistics in self.engine.core.statistics().replicas:
            assert replica_statistics.state is ReplicaState.UP
            assert replica_statistics.pool.num_held == replica_statistics.pool.num_fenced == 0
        assert int(self.engine.metering.finished.sum()) == len(self.requests)

    def check_end(self, request: Request) -> None:
        transcript = self.engine.transcript(request)
        if request.tokenizer < 0:
            return  # nobody was there to be told
        assert transcript.kinds[-1] is OutputKind.RELEASED
        assert transcript.kinds.count(OutputKind.RELEASED) == 1
        assert transcript.finished is not None
        usage = int(transcript.finished["num_output_tokens"])
        tokens, status = self.expected(request)
        if request.request_id in self.stopped_at:
            assert usage == self.stopped_at[request.request_id]
            return
        assert usage == len(transcript.token_ids)
        if request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH):
            assert (transcript.token_ids, transcript.status) == (tokens, status)
            self.check_prompt_logprobs(request)
        elif request.status is RequestStatus.FINISHED_ERROR:
            assert request.rejection is not None
            assert request.rejection.reason is RejectionReason.EXECUTOR_FAULT
            assert request.num_crashes >= self.engine.settings.poison_crashes

    def check_prompt_logprobs(self, request: Request) -> None:
        scores = self.engine.transcript(request).prompt_logprobs
        if request.sampling.num_prompt_logprobs < 0:
            assert not scores
        elif request.sampling.num_prompt_logprobs == 0:
            assert scores == {p: -float(p) for p in range(request.prompt_len)}


def test_any_history_leaves_every_request_with_its_own_tokens_and_one_end() -> None:
    """Any history leaves every request with its own tokens, one end, and no block or row behind."""
    run_state_machine_as_test(
        EngineCoreMachine,
        settings=settings(
            max_examples=120,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
