"""Rows that a class has reserved: lent while nobody of it wants them, back within a step."""

from core.errors import RejectionReason
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.scheduler import events as ev
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from core.tenancy.tenants import TenantConfig
from tests.support.scheduler.checked_engine import NS_PER_S, CheckedEngine, make_settings

NUM_ROWS = 4


def engine_with(limits: Limits) -> CheckedEngine:
    """Return an engine of four rows."""
    settings = make_settings(policy="headrace", max_num_seqs=NUM_ROWS, limits=limits)
    engine = CheckedEngine(settings)
    engine.start()
    return engine


def submit(engine: CheckedEngine, number: int, traffic_class: TrafficClass) -> Request:
    """Let a request arrive."""
    prompt = [100 * number, 1, 2]
    return engine.submit(engine.make_request(number, prompt, 50, traffic_class=traffic_class))


def test_a_lent_row_is_back_within_a_step() -> None:
    """With all rows lent to batch, an interactive request within its reserve starts at once."""
    classes = ClassesConfig(
        interactive=ClassConfig(reserved_seqs=1), batch=ClassConfig(preemptible=True)
    )
    engine = engine_with(Limits(classes))
    batch = [submit(engine, n, TrafficClass.BATCH) for n in range(1, 6)]
    engine.step()
    assert [request.row >= 0 for request in batch] == [True] * NUM_ROWS + [False]
    first = submit(engine, 6, TrafficClass.INTERACTIVE)
    engine.step()
    assert first.row >= 0
    assert [r.status for r in batch].count(RequestStatus.RUNNING) == NUM_ROWS - 1
    assert batch[3].status is RequestStatus.PREEMPTED
    second = submit(engine, 7, TrafficClass.INTERACTIVE)
    engine.step()
    assert second.row < 0, "beyond its reserve a class takes nothing from those that run"


def test_a_row_is_not_called_back_for_a_tenant_that_may_not_start() -> None:
    """A paused tenant of the reserving class preempts nobody."""
    classes = ClassesConfig(
        interactive=ClassConfig(reserved_seqs=1), batch=ClassConfig(preemptible=True)
    )
    engine = engine_with(Limits(classes))
    batch = [submit(engine, n, TrafficClass.BATCH) for n in range(1, 5)]
    waiting = engine.make_request(5, [1, 2, 3], 50, tenant="b")
    waiting.traffic_class = TrafficClass.INTERACTIVE
    engine.submit(waiting)
    engine.tell(ev.Configure(Limits(classes, paused=frozenset({"b"}))))
    for _ in range(3):
        engine.step()
    assert waiting.row < 0
    assert all(request.row >= 0 for request in batch)


def test_an_overdrawn_tenant_starts_when_the_timer_says_so() -> None:
    """A postpaid tenant that waits for its rate alone is woken by the core's own timer."""
    tenant = TenantConfig(
        name="a", tokens_per_minute=60, burst_tokens=10, budget_mode="postpaid", max_concurrency=1
    )
    engine = engine_with(Limits(tenants={"a": tenant}))
    first, second = (submit(engine, n, TrafficClass.STANDARD) for n in (1, 2))
    engine.run()
    assert first.status.is_finished
    assert second.status is RequestStatus.WAITING
    timer_ns = engine.core.next_timer()
    assert timer_ns is not None
    assert 30 * NS_PER_S < timer_ns - engine.clock.now_ns() < 60 * NS_PER_S
    engine.clock.advance_to(timer_ns)
    engine.step()
    assert second.row >= 0


def test_no_row_is_kept_for_what_never_fits() -> None:
    """What arrived before the pool was known and exceeds its class's share ends; others start."""
    interactive = ClassConfig(reserved_seqs=1, max_kv_fraction=0.25)
    limits = Limits(ClassesConfig(interactive=interactive))
    settings = make_settings(policy="headrace", max_num_seqs=1, limits=limits)
    engine = CheckedEngine(settings, num_blocks=32)
    never = submit(engine, 1, TrafficClass.INTERACTIVE)
    other = submit(engine, 2, TrafficClass.STANDARD)
    engine.step()
    assert never.rejection is None
    engine.start()
    assert never.status is RequestStatus.FINISHED_SHED
    assert never.rejection is not None
    assert never.rejection.reason is RejectionReason.KV_NEVER_FITS
    assert never.rejection.knob == "classes.interactive.max_kv_fraction"
    engine.run()
    assert other.status is RequestStatus.FINISHED_LENGTH


def test_what_a_smaller_share_can_never_hold_ends() -> None:
    """A request that waits when the quota of its tenant falls below its size ends at once."""
    engine = engine_with(Limits())
    waiting = [submit(engine, n, TrafficClass.STANDARD) for n in range(1, NUM_ROWS + 2)][-1]
    engine.step()
    assert waiting.rejection is None
    smaller = TenantConfig(name="a", kv_quota_fraction=0.01)
    engine.tell(ev.Configure(Limits(tenants={"a": smaller})))
    assert waiting.status is RequestStatus.FINISHED_SHED
    assert waiting.rejection is not None
    assert waiting.rejection.knob == "tenants[a].kv_quota_fraction"
