"""The made-up engine, recordings, and their replay."""

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from dashboard.frame import Frame, Liveness
from dashboard.history import History
from dashboard.journal import Journal
from dashboard.recording import MAX_RECORDING_BYTES, Recording, RecordingError, RecordingWriter
from dashboard.source.base import ControlError
from dashboard.source.demo import DemoSource
from dashboard.source.replay import ReplaySource
from ipc.control.registry import COMMANDS
from tests.support.control_plane.dashboard_stage import StageClock, demo


@pytest.fixture
def clock() -> StageClock:
    """Return a clock that only moves when told to."""
    return StageClock()


def frames(source: DemoSource, clock: StageClock, count: int, step_s: float = 0.25) -> list[Frame]:
    """Return some frames in a row."""
    seen = []
    for _ in range(count):
        clock.now_s += step_s
        seen.append(source.read())
    return seen


def test_the_same_seed_is_the_same_engine(clock: StageClock) -> None:
    """And another seed is another one."""
    first, second = StageClock(), StageClock()
    assert frames(demo(first), first, 40) == frames(demo(second), second, 40)
    assert demo(clock, seed=2).read().tenants != demo(clock, seed=1).read().tenants


def test_a_demonstration_adds_up(clock: StageClock) -> None:
    """Sums over tenants and classes are the totals, shares are shares, counters only grow."""
    seen = frames(demo(clock, num_tenants=64), clock, 60, step_s=1.0)
    for before, frame in pairwise(seen):
        assert sum(t.waiting for t in frame.tenants) == frame.totals.waiting
        assert sum(c.running for c in frame.classes) == frame.totals.running
        assert sum(c.held_blocks for c in frame.classes) == frame.held_blocks <= frame.num_blocks
        assert sum(t.share_used for t in frame.tenants) == pytest.approx(1.0)
        assert frame.totals.generated_tokens >= before.totals.generated_tokens
        assert frame.totals.steps > before.totals.steps


def test_a_demonstration_shows_every_kind_of_trouble(clock: StageClock) -> None:
    """Preemptions, sheds and rejections come without waiting for long."""
    last = frames(demo(clock), clock, 60, step_s=1.0)[-1]
    assert last.totals.preemptions > 0
    assert {"shed_predicted", "tenant_queue_full_requests"} <= set(last.totals.rejections)


def test_a_demonstration_answers_in_the_declared_shape(clock: StageClock) -> None:
    """What a screen reads of an answer is in the declaration of the command."""
    source = demo(clock)
    for command, args in (("requests", {"limit": 3}), ("events", {"limit": 3}), ("audit", {})):
        result = source.call(command, args)
        assert set(result) <= {field.name for field in COMMANDS[command].result}
    requests = source.call("requests", {})["requests"]
    assert isinstance(requests, list)
    shown = source.call("show", {"request": str(requests[0]["request_id"])})["requests"]
    assert isinstance(shown, list)
    assert shown[0]["tenant"] == requests[0]["tenant"]


def test_events_go_on_where_the_last_answer_ended(clock: StageClock) -> None:
    """No event twice, none left out."""
    source = demo(clock)
    first = source.call("events", {"since": 0, "limit": 5})
    second = source.call("events", {"since": first["next"], "limit": 5})
    numbers = [e["number"] for r in (first, second) for e in r["events"]]  # type: ignore[attr-defined]
    assert numbers == list(range(10))


def test_commands_change_the_demonstration(clock: StageClock) -> None:
    """A paused tenant starts nothing more; a weight is the new one; others are refused."""
    source = demo(clock)
    source.call("pause", {"tenant": "acme"})
    source.call("set", {"path": "tenants.beta.weight", "value": "7"})
    source.call("pause", {"class": "batch"})
    source.call("drain", {})
    source.call("cancel", {"tenant": "chat"})
    frame = source.read()
    by_name = {tenant.name: tenant for tenant in frame.tenants}
    assert (by_name["acme"].paused, by_name["beta"].weight, frame.draining) == (True, 7.0, True)
    assert [each.paused for each in frame.classes] == [False, False, True, False]
    assert by_name["chat"].waiting == by_name["chat"].running == 0
    for command, args in (
        ("shutdown", {}), ("pause", {"tenant": "nobody"}), ("show", {"request": "0"}),
        ("set", {"path": "tenants.beta.weight", "value": "much"}),
    ):  # fmt: skip
        with pytest.raises(ControlError):
            source.call(command, args)


@pytest.fixture
def recorded(tmp_path: Path, clock: StageClock) -> tuple[Path, list[Frame]]:
    """Return a recording of 30 s, and what is in it."""
    path = tmp_path / "seen.jsonl"
    seen = frames(demo(clock), clock, 120)
    with RecordingWriter(path) as writer:
        for frame in seen:
            writer.write(frame)
    return path, seen


@pytest.fixture
def replay(
    recorded: tuple[Path, list[Frame]], clock: StageClock
) -> Iterator[tuple[ReplaySource, list[Frame]]]:
    """Return a replay of it, and what is in it."""
    path, seen = recorded
    with closing(Recording(path)) as recording:
        yield ReplaySource(recording, clock.monotonic_s), seen


def test_what_was_recorded_is_read_back(recorded: tuple[Path, list[Frame]]) -> None:
    """Every frame, equal in all fields."""
    path, seen = recorded
    with closing(Recording(path)) as recording:
        assert [recording.frame(index) for index in range(len(recording))] == seen


def test_a_recording_that_was_cut_off_is_good_up_to_there(
    recorded: tuple[Path, list[Frame]],
) -> None:
    """As by a kill in the middle of a line."""
    path, seen = recorded
    path.write_bytes(path.read_bytes()[:-100])
    with closing(Recording(path)) as recording:
        assert len(recording) == len(seen) - 1


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b'{"kind":"headrace dashboard recording","version":999}\n[]\n',
                b'{"kind":"headrace dashboard recording","version":1}\n',
                b'{"kind":"headrace dashboard recording","version":1}\n{"no": "frame"}\n']
)  # fmt: skip
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """In one line that names it."""
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="other"):
        Recording(path)


def test_a_recording_replaces_no_file_and_ends_at_its_bound(
    tmp_path: Path, clock: StageClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full one drops frames, and says that it is full."""
    assert MAX_RECORDING_BYTES == 2**30
    path = tmp_path / "seen.jsonl"
    monkeypatch.setattr("dashboard.recording.MAX_RECORDING_BYTES", 20_000)
    with RecordingWriter(path) as writer:
        for frame in frames(demo(clock), clock, 60):
            writer.write(frame)
        assert writer.is_full
    assert path.stat().st_size < 40_000
    with pytest.raises(RecordingError, match="seen"):
        RecordingWriter(path)


def test_a_replay_goes_on_as_time_does(
    replay: tuple[ReplaySource, list[Frame]], clock: StageClock
) -> None:
    """And stops at its end."""
    source, seen = replay
    assert source.read() == seen[0]
    clock.now_s += 10.0
    assert source.read() == seen[40]
    clock.now_s += 1000.0
    assert source.read() == seen[-1]


def test_a_stopped_replay_stays_where_it_is(
    replay: tuple[ReplaySource, list[Frame]], clock: StageClock
) -> None:
    """Time that passes meanwhile is not made up for."""
    source, seen = replay
    source.is_playing = False
    clock.now_s += 10.0
    assert source.read() == seen[0]
    source.is_playing = True
    clock.now_s += 0.25
    assert source.read() == seen[1]


def test_after_a_jump_rates_are_as_if_one_had_watched(
    replay: tuple[ReplaySource, list[Frame]], clock: StageClock
) -> None:
    """They follow from the frames before the place."""
    source, seen = replay
    watched = History()
    views = [watched.push(frame) for frame in seen[:81]]
    jumped = History()
    for frame in source.seek(20.0):
        jumped.push(frame)
    view = jumped.push(source.read())
    assert view.frame == seen[80]
    assert (view.generated, view.ttft, view.queue) == (
        views[-1].generated, views[-1].ttft, views[-1].queue,
    )  # fmt: skip


def test_a_replay_takes_no_commands(replay: tuple[ReplaySource, list[Frame]]) -> None:
    """There is nobody to carry them out."""
    source, _ = replay
    assert not source.takes_commands
    with pytest.raises(ControlError):
        source.call("status", {})


def test_the_journal_notes_deaths_and_silence(clock: StageClock) -> None:
    """A process with a new epoch was restarted; an engine may fall silent and come back."""
    frame = demo(clock).read()
    again = [msgspec.structs.replace(frame.processes[0], epoch=2, restarts=1), *frame.processes[1:]]
    journal = Journal()
    for changes in (
        {}, {"liveness": Liveness.STALE}, {"liveness": Liveness.LIVE}, {"processes": tuple(again)},
    ):  # fmt: skip
        frame = msgspec.structs.replace(frame, taken_s=frame.taken_s + 1, **changes)
        journal.look(frame)
    told = [(entry["kind"], entry["reason"]) for entry in journal.entries()]
    assert told == [
        ("engine", "is stale"), ("engine", "is live"), ("restart", "janitor epoch 2"),
    ]  # fmt: skip
