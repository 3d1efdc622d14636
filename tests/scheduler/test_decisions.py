"""What was decided is written down with the two numbers that were compared."""

from core.errors import RejectionReason
from core.policy.base import Relief
from core.scheduler import events as ev
from core.scheduler.decisions import Decision, DecisionKind, DecisionLog
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from tests.support.scheduler.checked_engine import CheckedEngine, make_request, make_settings
from tests.support.scheduler.preemption_rig import FOREVER, Rig


def decisions(rig: Rig | CheckedEngine, kind: DecisionKind) -> list[Decision]:
    engine = rig.engine if isinstance(rig, Rig) else rig
    return [each for each in engine.core.decisions(0, 1000) if each.kind is kind]


def test_the_log_is_bounded_and_says_what_was_missed() -> None:
    """The oldest decisions go first; numbers go on, so a reader sees the gap."""
    log = DecisionLog(max_of_a_kind=3)
    for measured in range(5):
        log.note(DecisionKind.QUEUE, 7, make_request(9), measured=measured)
    assert [each.number for each in log.since(0, 99)] == [2, 3, 4]
    assert [each.measured for each in log.since(3, 1)] == [3.0]
    assert log.since(5, 99) == []
    assert log.num_decisions == 5


def flooded_log() -> DecisionLog:
    """Return a log of two preemptions, a flood of sheds, and a restart among these."""
    log = DecisionLog(max_of_a_kind=100)
    for request_id in (7, 8):
        log.note(DecisionKind.PREEMPT, 1, make_request(request_id))
    for request_id in range(1000, 1300):
        log.note(DecisionKind.SHED, 2, make_request(request_id))
        if request_id == 1250:
            log.note(DecisionKind.EPOCH, 2, reason="up")
    return log


def test_a_flood_of_one_kind_pushes_no_other_kind_out() -> None:
    """Who was preempted last can be told however many were refused since."""
    log = flooded_log()
    assert [each.request_id for each in log.since(0, 999, DecisionKind.PREEMPT)] == [7, 8]
    assert [each.request_id for each in log.last(1, DecisionKind.PREEMPT)] == [8]
    assert [each.kind for each in log.about(7)] == [DecisionKind.PREEMPT]
    assert len(log.since(0, 999)) == 2 + 100 + 1


def test_the_last_decisions_have_some_of_each_kind() -> None:
    """As many as were asked for, in order, and always the very last one."""
    log = flooded_log()
    for limit in (1, 2, 12, 13, 40, 100, 999):
        numbers = [each.number for each in log.last(limit)]
        assert len(numbers) == min(limit, 103)
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == log.num_decisions - 1
    kinds = [each.kind for each in log.last(40)]
    assert kinds[:2] == [DecisionKind.PREEMPT] * 2
    assert kinds.count(DecisionKind.EPOCH) == 1


def test_a_request_that_does_not_fit_is_queued_with_its_blocks() -> None:
    """Once for each constraint, however many steps it waits."""
    rig = Rig(8, prefix_cache=False)
    first = rig.submit(1, [11] * 20, 8)
    rig.run_until(1, first)
    rig.submit(2, [12] * 20, 8)
    for _ in range(3):
        rig.engine.step()
    [queued] = decisions(rig, DecisionKind.QUEUE)
    assert (queued.request_id, queued.reason, queued.replica) == (2, "memory", 0)
    assert (queued.measured, queued.threshold) == (5.0, 2.0)
    rig.end()


def test_headroom_is_told_from_memory() -> None:
    """A request that would fit waits for what others may still need, and the log says so."""
    rig = Rig(10, prefix_cache=False, kv_headroom_fraction=0.4)
    first = rig.submit(1, [11] * 12, 8)
    rig.run_until(1, first)
    rig.submit(2, [12] * 12, 8)
    rig.engine.step()
    [queued] = decisions(rig, DecisionKind.QUEUE)
    assert queued.reason == "headroom"
    assert (queued.measured, queued.threshold) == (7.0, 6.0)
    rig.end()


def test_preemptions_and_returns_are_told_apart() -> None:
    """How memory was given back, for what, and what the request had kept when it came back."""
    rig = Rig(prefix_cache=False)
    request = rig.submit(1, list(range(10, 23)))
    rig.run_until(3, request)
    rig.take(request, num_blocks=1)
    rig.resume()
    rig.run_until(4, request)
    rig.take(request, Relief.SWAP)
    rig.resume()
    rig.run_until(5, request)
    rig.take(request)
    rig.resume()
    rig.end(request)
    given = [
        (each.kind, each.reason, each.measured)
        for each in rig.engine.core.decisions(0, 99)
        if each.kind in (DecisionKind.SHORTEN, DecisionKind.SWAP, DecisionKind.PREEMPT)
    ]
    assert given == [
        (DecisionKind.SHORTEN, "admission", 1.0),
        (DecisionKind.SWAP, "admission", 5.0),
        (DecisionKind.PREEMPT, "admission", 6.0),
    ]
    returns = decisions(rig, DecisionKind.RESTORE)
    assert [each.reason for each in returns] == ["swapped", "preempted"]
    assert [(each.measured, each.threshold) for each in returns] == [(16.0, 16.0), (0.0, 17.0)]


def test_refusals_keep_their_numbers() -> None:
    """A refusal at arrival and a deadline that passed say what was compared."""
    rig = Rig(5, queue_deadline_ns=1_000_000)
    rig.submit(1, [11] * 20, 8)
    [refused] = decisions(rig, DecisionKind.REJECT)
    assert refused.reason == RejectionReason.KV_NEVER_FITS.code
    assert (refused.measured, refused.threshold) == (7.0, 5.0)
    rig.policy.grants = False
    rig.submit(2, [11] * 4, 4)
    rig.engine.clock.advance(2_000_000)
    rig.engine.tell()
    [expired] = decisions(rig, DecisionKind.EXPIRE)
    assert (expired.request_id, expired.measured, expired.threshold) == (2, 2.0, 1.0)


def test_executors_that_come_and_go_are_noted() -> None:
    """Epochs are decisions about nobody's request."""
    rig = Rig()
    rig.engine.kill(0)
    rig.engine.start(0)
    epochs = [(each.reason, each.measured) for each in decisions(rig, DecisionKind.EPOCH)]
    assert epochs == [("up", 1.0), ("down", 1.0), ("up", 2.0)]
    assert {each.request_id for each in decisions(rig, DecisionKind.EPOCH)} == {0}


def test_a_demotion_names_the_class_before() -> None:
    """A prompt beyond the cap of its class is served in another one, and the log says so."""
    classes = ClassesConfig(interactive=ClassConfig(max_prompt_tokens=8, over_cap="demote"))
    settings = make_settings(policy="headrace")
    engine = CheckedEngine(settings, num_blocks=100)
    engine.start()
    engine.tell(ev.Configure(type(settings.limits)(classes)))
    request = engine.make_request(
        1, [11] * 12, 4, traffic_class=TrafficClass.INTERACTIVE, sampling=FOREVER
    )
    engine.submit(request)
    [demoted] = decisions(engine, DecisionKind.DEMOTE)
    assert (demoted.reason, demoted.traffic_class) == ("interactive", "standard")
    assert (demoted.measured, demoted.threshold) == (12.0, 8.0)


def test_new_prices_are_a_decision() -> None:
    """The first prices are epoch 1; both numbers of a change are told."""
    rig = CheckedEngine(make_settings(policy="headrace"))
    rig.start()
    rig.submit(rig.make_request(1, [10, 11], 2))
    rig.run()
    [prices] = decisions(rig, DecisionKind.PRICES)
    assert (prices.measured, prices.threshold) == (1, 0)
