"""What pictures show of engines that a demonstration has not: many replicas, dead ones, nothing."""

from typing import Any

import msgspec
import pytest

from dashboard.format import ASCII, UNICODE
from dashboard.frame import Frame, Liveness
from dashboard.history import History, Sample, View
from dashboard.lines import Tone, plain_text, width_of
from dashboard.pictures.alerts import alerts
from dashboard.pictures.executors import executors
from dashboard.pictures.latest import latest, latest_of
from dashboard.pictures.memory import memory
from dashboard.pictures.overview import overview
from dashboard.pictures.promises import promises
from dashboard.pictures.request import request
from dashboard.pictures.trends import trends
from dashboard.widgets.header_bar import state_line, state_of
from tests.support.control_plane.dashboard_stage import StageClock, demo


def view_of(**changes: Any) -> View:
    """Return the view of a demonstration with some fields of its frame replaced."""
    frame = demo(StageClock()).read()
    return History().push(msgspec.structs.replace(frame, **changes))


def told(view: View) -> list[str]:
    """Return the alerts as text."""
    return [text for text, _ in alerts(view)]


def replicas(count: int, **changes: Any) -> tuple[Any, ...]:
    """Return so many replicas."""
    (one,) = demo(StageClock()).read().replicas
    return (msgspec.structs.replace(one, **changes),) * count


def test_many_replicas_fit_by_fewer_lines_each() -> None:
    """Each of them is named, however little room there is."""
    for count in (1, 3, 8):
        lines = executors(view_of(replicas=replicas(count)), 80, 16, ASCII)
        assert len(lines) <= 16
        assert plain_text(lines).count("replica ") == count


def test_a_replica_without_executor_is_an_alarm() -> None:
    """On its screen and on the overview."""
    view = view_of(replicas=replicas(1, epoch=0))
    assert "NO EXECUTOR" in plain_text(executors(view, 80, 16, ASCII))
    assert "replica 0 has no executor" in told(view)


def test_a_process_that_is_down_is_an_alarm() -> None:
    """With its state and how often it was restarted."""
    processes = demo(StageClock()).read().processes
    dead = msgspec.structs.replace(processes[3], state="backoff", restarts=4)
    view = view_of(processes=(*processes[:3], dead))
    assert told(view)[0] == "executor.0.0 is backoff, 4 restarts"
    assert next(iter(alerts(view)))[1] is Tone.ALARM


def executor_silent_for(seconds: float, activity: str = "busy", **replica: Any) -> View:
    """Return the view of an engine whose executor has not stamped for so long."""
    processes = demo(StageClock()).read().processes
    silent = msgspec.structs.replace(
        processes[3], activity=activity, heartbeat_age_s=seconds, patience_s=60.0 - seconds
    )
    return view_of(processes=(silent,), replicas=replicas(1, **replica))


def hung(view: View) -> list[str]:
    """Return the alerts about processes that look hung."""
    return [text for text in told(view) if "HUNG" in text]


def test_a_process_in_a_step_is_hung_only_after_many_steps_time() -> None:
    """And it is said when it will be killed; one that is idle owes a heartbeat at any time."""
    assert not hung(executor_silent_for(1.5))
    assert hung(executor_silent_for(2.5)) == [
        "executor.0.0 HUNG? in one step for 2.5s, expected 12ms; killed in 57.5s"
    ]
    assert not hung(executor_silent_for(4.0, expected_step_s=0.5))
    assert hung(executor_silent_for(4.0, expected_step_s=0.0)) == [
        "executor.0.0 HUNG? in one step for 4.0s; killed in 56.0s"
    ]
    assert not hung(executor_silent_for(1.5, "idle"))
    assert "no heartbeat for 2.5s" in hung(executor_silent_for(2.5, "idle"))[0]
    assert not hung(executor_silent_for(90.0, "loading"))


def test_an_executor_whose_device_does_not_come_to_an_end_is_hung_though_its_loop_stamps() -> None:
    """By the age of its plan on the scheduler's page; a page that is old itself accuses nobody."""
    view = executor_silent_for(0.1, plan_age_s=3.0)
    assert hung(view) == ["executor.0.0 HUNG? in one step for 3.0s, expected 12ms; killed in 59.9s"]
    assert (
        "no answer to its plan for 3.0s"
        in hung(executor_silent_for(0.1, "idle", plan_age_s=3.0))[0]
    )
    old = msgspec.structs.replace(view.frame, age_s=1.5)
    assert not hung(msgspec.structs.replace(view, frame=old))


def test_who_is_over_its_share_is_said_while_another_is_short() -> None:
    """With what each had and was due; nobody is accused of taking what nobody wanted."""
    first, second, *_ = demo(StageClock()).read().tenants
    greedy = msgspec.structs.replace(first, name="greedy", share_used=0.7, share_due=0.5)
    patient = msgspec.structs.replace(
        second, name="patient", share_used=0.3, share_due=0.5, waiting=3
    )
    view = view_of(tenants=(greedy, patient))
    assert "over share: greedy 70% of 50% due; short: patient 30% of 50% due" in told(view)
    content = msgspec.structs.replace(patient, waiting=0)
    assert not [t for t in told(view_of(tenants=(greedy, content))) if "over share" in t]


def test_who_was_preempted_is_said_for_a_while() -> None:
    """With how often, and why."""
    frame = demo(StageClock()).read()
    victim = msgspec.structs.replace(frame.tenants[0], name="victim", preemptions=2)
    before = msgspec.structs.replace(
        frame, tenants=(victim,), totals=msgspec.structs.replace(frame.totals, preemptions_by={})
    )
    after = msgspec.structs.replace(
        frame,
        taken_s=frame.taken_s + 1.0,
        tenants=(msgspec.structs.replace(victim, preemptions=5),),
        totals=msgspec.structs.replace(frame.totals, preemptions_by={"recompute for admission": 3}),
    )
    history = History()
    history.push(before)
    words = "preempted in the last 15 s: victim 3 (recompute for admission)"
    assert words in told(history.push(after))


def test_those_who_hold_most_memory_are_named_first() -> None:
    """As many as there is room for, none of them in pieces."""
    view = view_of()
    holders = plain_text(memory(view, 80, ASCII)).split("\n")[1]
    most = max(view.frame.tenants, key=lambda each: each.held_blocks)
    assert holders.split()[2] == most.name
    assert holders.endswith(")")
    assert len(holders) <= 80


def test_the_last_event_of_each_sort_is_told_with_its_numbers() -> None:
    """However many others came after it."""
    events: list[dict[str, object]] = [
        {"number": 1, "at_s": 1.0, "kind": "preempt", "tenant": "acme",
         "reason": "admission", "measured": 18.0, "threshold": 3.0},
        *({"number": n, "at_s": 2.0, "kind": "shed", "tenant": "beta",
           "reason": "shed_predicted", "measured": 17_000.0, "threshold": 14_400.0}
          for n in range(2, 9)),
        {"number": 0, "origin": "here", "at_s": 3.0, "kind": "command",
         "reason": "set tenants.acme.weight 3", "change": "1 > 3"},
    ]  # fmt: skip
    lines = plain_text(latest(latest_of(events), 10.0, 100, is_whole=True)).split("\n")
    assert lines[0].endswith("9.0s ago  preempt acme admission: 18 back, 3 free")
    assert "(7)" in lines[1]
    assert lines[1].endswith("shed beta shed_predicted: in 17.0s, due in 14.4s")
    assert lines[2].endswith("none")
    assert lines[3].endswith("set tenants.acme.weight 3: 1 > 3")


def test_a_restart_concerns_no_tenant() -> None:
    """It is told without one, and how many there have been."""
    event = {"kind": "restart", "at_s": 1.0, "reason": "admin.0 epoch 2", "measured": 1}
    told_lines = plain_text(latest(latest_of([event]), 2.0, 100, is_whole=True)).split("\n")
    assert told_lines[2].endswith("1.0s ago  restart admin.0 epoch 2: 1 so far")


def test_nobody_holds_a_part_of_no_memory() -> None:
    """While there is no executor nothing is said of shares in its pool."""
    (one,) = replicas(1, epoch=0, num_blocks=0, held_blocks=0)
    lines = plain_text(memory(view_of(replicas=(one,)), 80, ASCII)).split("\n")
    assert lines[1].split() == ["held", "by", "nobody"]


def test_the_peak_of_a_trend_is_no_less_than_what_it_is_now() -> None:
    """The newest number is not yet a bar of the chart."""
    view = view_of()
    samples = tuple(Sample(float(t), generated=5.0) for t in range(3))
    view = msgspec.structs.replace(view, samples=samples, generated=7.0)
    assert "peak 7.0" in plain_text(trends(view, 120, 2, ASCII))


def test_what_nobody_remembers_is_not_denied() -> None:
    """A flood of refusals pushes a preemption out of what is kept: that is not "none"."""
    refusal = {"kind": "shed", "at_s": 1.0, "tenant": "acme", "reason": "shed_predicted"}
    found = latest_of([refusal])
    for is_whole, words in ((True, "none"), (False, "none among those kept here")):
        first, second, *_ = plain_text(latest(found, 2.0, 100, is_whole=is_whole)).split("\n")
        assert first.split("preempted")[1].strip() == words
        assert "shed acme" in second


def test_what_is_paused_or_draining_is_said() -> None:
    """Classes and tenants by name."""
    frame = demo(StageClock()).read()
    paused = msgspec.structs.replace(frame.classes[2], paused=True)
    view = view_of(classes=(*frame.classes[:2], paused, frame.classes[3]), draining=True)
    assert told(view) == ["the engine is draining", "paused: batch"]


def test_a_step_longer_than_a_promised_gap_is_an_alarm() -> None:
    """The share of the gap is shown in the alarm's tone."""
    source, history = demo(clock := StageClock()), History()
    history.push(source.read())
    clock.now_s += 5.0
    frame = source.read()
    tight = tuple(msgspec.structs.replace(each, itl_ms=10) for each in frame.classes)
    view = history.push(msgspec.structs.replace(frame, classes=tight))
    spans = [span for line in overview(view, 80, 20, UNICODE) for span in line]
    assert any("%" in text and tone is Tone.ALARM for text, tone in spans)


@pytest.mark.parametrize("width", [30, 80, 200])
def test_an_engine_of_which_nothing_is_known_is_drawn(width: int) -> None:
    """No page was read yet: no division by nothing."""
    view = History().push(Frame(1.0, 1.0, "new"))
    assert overview(view, width, 20, ASCII)
    assert promises(view, width)
    assert "no replica yet" in plain_text(executors(view, width, 10, ASCII))
    assert width_of(state_line(view.frame, (), "12:00:00", width, ASCII)) <= width


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "live"),
        ({"draining": True}, "draining"),
        ({"stopping": True}, "stopping"),
        ({"liveness": Liveness.STALE, "age_s": 3.0}, "SILENT for 3.0s"),
        ({"liveness": Liveness.STALE, "age_s": 0.0}, "starting"),
        ({"liveness": Liveness.GONE, "age_s": 65.0}, "GONE 1m05s ago, looking for it"),
        ({"liveness": Liveness.GONE, "processes": ()}, "not running, looking for it"),
    ],
)
def test_the_state_is_said_in_words(changes: dict[str, Any], words: str) -> None:
    """So that it can be read without colour."""
    assert state_of(view_of(**changes).frame) == words


def test_a_request_that_waits_says_why_by_which_numbers() -> None:
    """And when its start is foreseen, if it is."""
    record: dict[str, object] = {
        "request_id": 7, "tenant": "acme", "status": "waiting", "age_s": 4.0, "waited_s": 4.0,
        "blocked": "memory", "measured": 66.0, "threshold": 12.0, "place": 0,
        "predicted_start_in_ms": None, "ttft_deadline_in_ms": -500.0,
    }  # fmt: skip
    text = plain_text(request(record, 80, ASCII))
    assert "waits for memory: its KV blocks do not fit" in text
    assert "66 needed, 12 available   start not foreseen   0 before it" in text
    assert "what helps: cancel or preempt others" in text
    assert "first token was promised 500ms ago" in text


def test_a_foreseen_start_is_told_with_how_sure_it_is() -> None:
    """Between when and when it lies, and whether it is rather refused."""
    record: dict[str, object] = {
        "request_id": 7, "tenant": "acme", "status": "waiting", "age_s": 4.0, "waited_s": 4.0,
        "blocked": "tokens", "measured": 0.0, "threshold": 0.0, "place": 3,
        "predicted_start_in_ms": 9000.0, "soonest_start_in_ms": 5000.0,
        "latest_start_in_ms": 14000.0, "is_doubtful": True,
    }  # fmt: skip
    text = plain_text(request(record, 100, ASCII))
    assert "start in 5.0s to 14.0s, or refused   3 before it" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "waiting"}, " first token promised in 2.0s  refused unless it starts in 9.0s "),
        ({"status": "running"}, " first token promised in 2.0s "),
        ({"status": "running", "num_output_tokens": 1}, " its first token has come "),
        ({"status": "running", "ttft_deadline_in_ms": None}, " nothing is promised to it"),
    ],
)
def test_only_what_is_still_to_come_is_told_as_promised(
    changes: dict[str, object], words: str
) -> None:
    """A deadline that was met is not counted down, nor told as if it had been missed."""
    record: dict[str, object] = {
        "request_id": 7, "num_output_tokens": 0, "max_tokens": 9, "age_s": 1.0, "waited_s": 1.0,
        "ttft_deadline_in_ms": 2000.0, "queue_deadline_in_ms": 9000.0,
    }  # fmt: skip
    text = plain_text(request(record | changes, 80, ASCII))
    assert words.strip() in [each.strip() for each in text.splitlines()]
