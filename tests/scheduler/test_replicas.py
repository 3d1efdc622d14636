"""Several executors, and their deaths."""

import pytest

from core.errors import RejectionReason
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import OutputKind
from core.scheduler.replica import ReplicaState
from core.scheduler.routing import STALLED_AFTER_NS
from tests.support.scheduler.checked_engine import CheckedEngine, make_settings, reference_tokens

FOREVER = SamplingParams(ignore_eos=True)


def make_engine(
    num_replicas: int = 2, *, num_blocks: int = 100, **overrides: object
) -> CheckedEngine:
    engine = CheckedEngine(
        make_settings(**overrides), num_blocks=num_blocks, num_replicas=num_replicas
    )
    for replica in range(num_replicas):
        engine.start(replica)
    return engine


def submit(
    engine: CheckedEngine, request_id: int, prompt: list[int], max_tokens: int = 8
) -> Request:
    return engine.submit(engine.make_request(request_id, prompt, max_tokens, sampling=FOREVER))


def is_right(engine: CheckedEngine, request: Request) -> bool:
    prompt = request.token_ids[: request.prompt_len].tolist()
    expected, _ = reference_tokens(prompt, request.max_tokens, FOREVER, 50_000)
    return engine.transcript(request).token_ids == expected


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stream_continues_when_its_executor_comes_back(depth: int) -> None:
    """After a kill in the middle of a step every request goes on with the same tokens."""
    engine = make_engine(1, pipeline_depth=depth)
    requests = [submit(engine, i, [10 + i] * (4 + 9 * i), 12) for i in range(4)]
    for _ in range(5):
        engine.step()
    engine.plan()
    engine.kill()
    assert all(r.status in (RequestStatus.PREEMPTED, RequestStatus.WAITING) for r in requests)
    engine.core.check_integrity()
    engine.start()
    engine.run()
    assert all(is_right(engine, request) for request in requests)
    assert all(r.num_preemptions == 0 for r in requests)


def test_an_executor_that_dies_fences_nothing() -> None:
    """A request that was cancelled during the last step is released when the executor is dead."""
    engine = make_engine(1)
    request = submit(engine, 1, [10])
    engine.plan()
    engine.tell(ev.Abort(1))
    assert engine.transcript(request).kinds[-1] is OutputKind.FINISHED
    engine.kill()
    assert engine.transcript(request).kinds[-1] is OutputKind.RELEASED
    assert engine.core.num_requests == 0


def test_requests_of_a_dead_executor_move_to_another() -> None:
    """With a second replica the requests of the first go on there at once."""
    engine = make_engine(2)
    requests = [submit(engine, i, [10 + i] * 20, 10) for i in range(4)]
    for _ in range(4):
        engine.step()
    assert {request.replica for request in requests} == {0, 1}
    engine.kill(0)
    engine.run()
    assert all(is_right(engine, request) for request in requests)


def test_a_crash_counts_only_for_those_in_flight() -> None:
    """A request that waits, or runs on another replica, is not blamed for a crash."""
    engine = make_engine(1, max_num_seqs=1)
    running, waiting = submit(engine, 1, [10]), submit(engine, 2, [11])
    engine.plan()
    engine.kill()
    assert (running.num_crashes, waiting.num_crashes) == (1, 0)
    engine.start()
    engine.step()
    engine.kill()
    assert running.num_crashes == 1, "it was between two steps"


def test_a_poisonous_request_is_ended() -> None:
    """A request that was in flight at poison_crashes crashes ends; its neighbour is served."""
    engine = make_engine(1, poison_crashes=2, max_num_seqs=1)
    poison, innocent = submit(engine, 1, [10]), submit(engine, 2, [11])
    for _ in range(2):
        engine.plan()
        engine.kill()
        engine.start()
    assert engine.transcript(poison).status is RequestStatus.FINISHED_ERROR
    assert engine.transcript(poison).kinds[-1] is OutputKind.RELEASED
    assert poison.rejection is not None
    assert poison.rejection.reason is RejectionReason.EXECUTOR_FAULT
    engine.run()
    assert is_right(engine, innocent)


def test_when_the_last_replica_is_given_up_everything_ends() -> None:
    """Without any executor left, live requests end with NO_REPLICA and new ones are refused."""
    engine = make_engine(2)
    requests = [submit(engine, i, [10 + i]) for i in range(4)]
    engine.step()
    engine.kill(0, gone=True)
    assert not any(request.status.is_finished for request in requests)
    engine.kill(1, gone=True)
    late = submit(engine, 9, [10])
    for request in [*requests, late]:
        assert request.status is RequestStatus.FINISHED_ERROR
        assert request.rejection is not None
        assert request.rejection.reason is RejectionReason.NO_REPLICA
    assert engine.core.num_requests == 0
    assert engine.core.next_timer() is None


def test_a_replica_that_was_given_up_may_return() -> None:
    """A new epoch makes a replica usable again, whatever was thought of it."""
    engine = make_engine(1)
    engine.kill(0, gone=True)
    engine.start()
    request = submit(engine, 1, [10])
    engine.run()
    assert is_right(engine, request)


def test_a_new_epoch_without_a_death_notice_is_a_restart() -> None:
    """If an executor is up again before its death was seen, its requests are recomputed."""
    engine = make_engine(1)
    request = submit(engine, 1, [10])
    engine.step()
    engine.plan()
    engine.unanswered[0].clear()
    engine.start()
    engine.run()
    assert is_right(engine, request)
    assert engine.core.statistics().replicas[0].epoch == 2


def test_what_only_fits_a_lost_pool_is_ended() -> None:
    """When the only pool that could hold a request is given up, the request ends by arithmetic."""
    engine = CheckedEngine(make_settings(), num_blocks=20, num_replicas=2)
    engine.start(0)
    engine.num_blocks = 4
    engine.start(1)
    large = submit(engine, 1, [10] * 40)
    assert large.status is RequestStatus.WAITING
    engine.plan(1)
    assert large.status is RequestStatus.WAITING, "the small pool left it to the large one"
    engine.kill(0, gone=True)
    assert large.rejection is not None
    assert large.rejection.reason is RejectionReason.KV_NEVER_FITS


def test_work_is_spread_over_idle_replicas() -> None:
    """Requests that arrive together do not all start on the replica that plans first."""
    engine = make_engine(2)
    requests = [submit(engine, i, [10 + i] * 8) for i in range(4)]
    engine.step()
    engine.step()
    assert sorted(request.replica for request in requests) == [0, 0, 1, 1]


def test_a_request_goes_where_its_prefix_is() -> None:
    """A long cached prefix is worth leaving an idle replica alone."""
    engine = make_engine(2, max_model_len=1024, num_blocks=400, max_num_batched_tokens=64)
    prompt = list(range(10, 410))
    submit(engine, 1, prompt)
    engine.run()
    home = next(r for r, s in enumerate(engine.core.statistics().replicas) if s.pool.num_evictable)
    again = submit(engine, 2, [*prompt, 5])
    engine.plan(1 - home)
    assert again.status is RequestStatus.WAITING
    engine.plan(home)
    assert again.replica == home
    assert again.num_cached_tokens == 400


def test_a_stalled_replica_attracts_nothing() -> None:
    """A replica that owes a result for long does not keep a request from an idle one."""
    engine = make_engine(2, max_model_len=1024, num_blocks=400, max_num_batched_tokens=64)
    prompt = list(range(10, 410))
    submit(engine, 1, prompt, 50)
    while not engine.transcripts[1].token_ids:
        engine.step()
    home = engine.core.requests(1)[0].replica
    engine.plan(home)
    engine.clock.advance(STALLED_AFTER_NS + 1)
    again = submit(engine, 2, [*prompt, 5])
    engine.plan(1 - home)
    assert again.replica == 1 - home


def test_a_draining_replica_finishes_and_starts_nothing() -> None:
    """A draining replica serves what runs there; what comes goes to the other one."""
    engine = make_engine(2)
    first = submit(engine, 1, [10] * 4, 20)
    engine.step()
    engine.tell(ev.DrainReplica(first.replica))
    others = [submit(engine, i, [20 + i] * 4) for i in (2, 3, 4)]
    engine.run()
    assert first.status is RequestStatus.FINISHED_LENGTH
    assert {request.replica for request in others} == {1 - first.replica}
    engine.tell(ev.UndrainReplica(first.replica))
    assert not engine.core.statistics().replicas[first.replica].draining


def test_statistics_tell_the_state_of_each_replica() -> None:
    """Blocks, rows, plans in flight and states are in the statistics."""
    engine = make_engine(2)
    submit(engine, 1, [10] * 8)
    plan = engine.plan(0)
    assert plan is not None
    engine.kill(1)
    up, down = engine.core.statistics().replicas
    assert (up.state, down.state) == (ReplicaState.UP, ReplicaState.DOWN)
    assert (up.num_running, up.num_in_flight, up.pool.num_held) == (1, 1, 2)
    assert up.plan_sent_ns == engine.clock.now_ns()
    assert (down.epoch, down.pool.num_blocks) == (0, 0)
