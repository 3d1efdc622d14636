"""The waiting queue seen from outside: bounds, deadlines, draining."""

import pytest

from core.errors import RejectionReason
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import OutputKind
from core.tenancy.tenancy import Tenancy
from core.tenancy.tenants import TenantConfig
from tests.support.scheduler.checked_engine import NS_PER_S, CheckedEngine, make_settings

FOREVER = SamplingParams(ignore_eos=True)


def make_engine(*, up: bool = True, **overrides: object) -> CheckedEngine:
    engine = CheckedEngine(make_settings(**overrides), num_blocks=100)
    if up:
        engine.start()
    return engine


def submit(
    engine: CheckedEngine, request_id: int, prompt_len: int = 4, **fields: object
) -> Request:
    prompt = [request_id] * prompt_len
    request = engine.make_request(request_id, prompt, 4, sampling=FOREVER, **fields)  # type: ignore[arg-type]
    return engine.submit(request)


def reason(request: Request) -> RejectionReason:
    assert request.rejection is not None, request
    return request.rejection.reason


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"max_queued_requests": 3}, RejectionReason.QUEUE_FULL_REQUESTS),
        ({"max_queued_tokens": 24}, RejectionReason.QUEUE_FULL_TOKENS),
    ],
)
def test_a_full_queue_refuses_at_once(overrides: dict[str, int], expected: RejectionReason) -> None:
    """What does not fit into the queue is answered in the same call, and takes nothing from it."""
    engine = make_engine(up=False, **overrides)
    accepted = [submit(engine, i) for i in (1, 2, 3)]
    refused = submit(engine, 4)
    assert engine.transcript(refused).kinds == [OutputKind.FINISHED, OutputKind.RELEASED]
    finished = engine.transcript(refused).finished
    assert finished is not None
    assert finished["reason"] == expected
    assert finished["retry_after_ms"] > 0
    assert refused.status is RequestStatus.FINISHED_SHED
    assert all(request.status is RequestStatus.WAITING for request in accepted)
    assert engine.metering.rejections[expected] == 1
    engine.start()
    engine.run()
    assert all(request.status is RequestStatus.FINISHED_LENGTH for request in accepted)


def test_a_tenant_that_floods_the_queue_leaves_room_for_another() -> None:
    """Sixteen of eighteen places are for one of two tenants, and the next two for the other."""
    limits = Limits.of_tenancy(Tenancy(tenants=(TenantConfig(name="a"), TenantConfig(name="b"))))
    engine = make_engine(up=False, max_queued_requests=18, limits=limits)
    flood = [submit(engine, k, tenant="a") for k in range(1, 31)]
    assert all(request.status is RequestStatus.WAITING for request in flood[:16])
    assert all(request.status is RequestStatus.FINISHED_SHED for request in flood[16:])
    assert reason(flood[16]) is RejectionReason.QUEUE_FULL_REQUESTS
    others = [submit(engine, k, tenant="b").status for k in range(31, 34)]
    assert others == [RequestStatus.WAITING, RequestStatus.WAITING, RequestStatus.FINISHED_SHED]


def test_a_started_request_makes_room_in_the_queue() -> None:
    """Only requests that have not started count against the bounds."""
    engine = make_engine(max_queued_requests=1)
    submit(engine, 1)
    engine.step()
    assert submit(engine, 2).status is RequestStatus.WAITING


def test_a_waiting_request_expires_while_a_step_runs() -> None:
    """A queue deadline ends a waiting request when it passes, not at the next step boundary."""
    engine = make_engine(max_num_seqs=1)
    running = submit(engine, 1)
    late = submit(engine, 2, queue_deadline_ns=engine.clock.now_ns() + 5_000_000)
    engine.plan()
    assert engine.core.next_timer() == late.queue_deadline_ns
    engine.clock.advance(5_000_000)
    engine.tell()
    assert late.status is RequestStatus.FINISHED_EXPIRED
    assert reason(late) is RejectionReason.DEADLINE_EXCEEDED
    assert late.rejection is not None
    assert late.rejection.measured == late.rejection.threshold == 5.0
    assert running.status is RequestStatus.RUNNING


def test_the_configured_queue_deadline_can_only_be_tightened() -> None:
    """The earlier of the client's and the configured queue deadline holds."""
    engine = make_engine(up=False, queue_deadline_ns=2 * NS_PER_S)
    patient = submit(engine, 1, queue_deadline_ns=engine.clock.now_ns() + 9 * NS_PER_S)
    engine.clock.advance(2 * NS_PER_S)
    engine.tell()
    assert patient.status is RequestStatus.FINISHED_EXPIRED


def test_a_queue_deadline_does_not_concern_what_has_started() -> None:
    """A request that has started, even if it was preempted since, misses no queue deadline."""
    engine = make_engine()
    request = submit(engine, 1, queue_deadline_ns=engine.clock.now_ns() + NS_PER_S)
    engine.step()
    engine.kill()
    engine.clock.advance(2 * NS_PER_S)
    engine.tell()
    assert request.status is RequestStatus.PREEMPTED


@pytest.mark.parametrize("depth", [1, 2])
def test_an_end_deadline_ends_a_running_request(depth: int) -> None:
    """A timeout ends a running request; its memory is fenced until the plans are acknowledged."""
    engine = make_engine(pipeline_depth=depth)
    request = submit(engine, 1, prompt_len=8, end_deadline_ns=engine.clock.now_ns() + 1_000_000)
    for _ in range(depth):
        engine.plan()
    engine.clock.advance(1_000_000)
    engine.tell()
    assert request.status is RequestStatus.FINISHED_EXPIRED
    assert engine.transcript(request).kinds[-1] is OutputKind.FINISHED
    assert engine.core.statistics().replicas[0].pool.num_fenced > 0
    engine.run()
    assert engine.transcript(request).kinds[-1] is OutputKind.RELEASED
    assert engine.transcript(request).token_ids == []


def test_the_configured_timeout_ends_what_the_client_left_open() -> None:
    """Every request has an end deadline, the client's or the configured one."""
    engine = make_engine(up=False, queue_deadline_ns=99 * NS_PER_S, request_timeout_ns=NS_PER_S)
    request = submit(engine, 1)
    assert engine.core.next_timer() == request.arrival_ns + NS_PER_S
    engine.clock.advance(NS_PER_S)
    engine.tell()
    assert request.status is RequestStatus.FINISHED_EXPIRED


def test_a_request_whose_deadlines_pass_together_ends_once() -> None:
    """Two deadlines due in the same call give one terminal record."""
    engine = make_engine(up=False)
    soon = engine.clock.now_ns() + 1000
    request = submit(engine, 1, queue_deadline_ns=soon, end_deadline_ns=soon)
    engine.clock.advance(5000)
    engine.tell()
    assert engine.transcript(request).kinds.count(OutputKind.FINISHED) == 1


def test_draining_refuses_new_requests_and_serves_accepted_ones() -> None:
    """While draining, what waits and runs is served, and what comes gets 503."""
    engine = make_engine(max_num_seqs=1)
    accepted = [submit(engine, i) for i in (1, 2)]
    engine.tell(ev.Drain())
    refused = submit(engine, 3)
    assert reason(refused) is RejectionReason.DRAINING
    engine.run()
    assert [r.status for r in accepted] == [RequestStatus.FINISHED_LENGTH] * 2
    engine.tell(ev.Undrain())
    assert submit(engine, 4).status is RequestStatus.WAITING


def test_the_oldest_wait_is_known() -> None:
    """Statistics name the arrival of the request that has waited longest for its start."""
    engine = make_engine(up=False)
    first = submit(engine, 1)
    engine.clock.advance(1000)
    submit(engine, 2)
    assert engine.core.statistics().oldest_arrival_ns == first.arrival_ns
    engine.tell(ev.Abort(1))
    assert engine.core.statistics().oldest_arrival_ns == first.arrival_ns + 1000
    engine.tell(ev.Abort(2))
    assert engine.core.statistics().oldest_arrival_ns == 0


def test_tenants_beyond_the_bound_are_counted_together() -> None:
    """Every request is counted for its tenant; when all indexes are taken, for `_other`."""
    engine = make_engine(up=False)
    for i in range(100):
        request = engine.make_request(i, [10], 1, tenant=f"tenant-{i}")
        engine.submit(request)
    tenants = engine.metering.tenants
    assert len(engine.metering.tenant_names) == 64
    assert tenants.requests[1:].tolist() == [1] * 63
    assert tenants.requests[0] == tenants.num_waiting[0] == 37
