"""What pictures show of engines that a demonstration has not: many replicas, dead ones, nothing."""

from typing import Any

import msgspec
import pytest

from dashboard.format import ASCII, UNICODE
from dashboard.frame import Frame, Liveness
from dashboard.history import History, View
from dashboard.lines import Tone, plain_text, width_of
from dashboard.pictures.executors import executors
from dashboard.pictures.overview import alerts, overview
from dashboard.pictures.promises import promises
from dashboard.pictures.request import request
from dashboard.widgets.header_bar import state_line, state_of
from tests.support.dashboard import StageClock, demo


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
    assert "it waits for: memory" in text
    assert "measured 66, limit 12   place 0" in text
    assert "not foreseen" in text
    assert "first token promised 500ms ago" in text
