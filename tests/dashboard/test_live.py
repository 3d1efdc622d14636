"""A running engine, read from shared memory by nobody's leave, and given commands by message."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import zmq

from core.errors import RejectionReason
from dashboard.frame import Frame, Liveness
from dashboard.source.base import ControlError
from dashboard.source.live import LiveSource
from dashboard.widgets.header_bar import state_of
from ipc.codec import Codec
from ipc.messages import ControlCall, ControlReply
from ipc.pages import TTFT_BUCKETS_S
from ipc.ports import RouterPort
from ipc.run_directory import RunDirectory
from tests.support.control_plane.dashboard_stage import StageClock
from tests.support.control_plane.run_directory_stage import EngineOnPaper

NS_PER_S = 1_000_000_000


@pytest.fixture
def clock() -> StageClock:
    """Return a clock that only moves when told to."""
    return StageClock()


@pytest.fixture
def source(tmp_path: Path, clock: StageClock) -> Iterator[LiveSource]:
    """Give the source of the engine `paper`."""
    with closing(
        LiveSource("paper", clock.monotonic_ns, clock.wall_s, tmp_path / "base")
    ) as source:
        yield source


def write_tenants(engine: EngineOnPaper, clock: StageClock) -> None:
    """Publish a page with two tenants and one replica."""
    rejections = [0] * 32
    rejections[RejectionReason.SHED_PREDICTED] = 3
    engine.publish(
        clock.monotonic_ns(), "scheduler", num_waiting=4, num_running=2, steps=9, num_replicas=1,
        num_tenants=2, oldest_wait_ns=1_500_000_000,
        replicas=[{"epoch": 1, "num_blocks": 100, "num_held_blocks": 40,
                   "last_step_ns": clock.monotonic_ns() - 20_000_000}],
        tenants=[
            {"name": b"acme", "weight": 2.0, "num_waiting": 4, "oldest_wait_ns": 1_500_000_000,
             "budget_tokens": -1, "share_used": 0.75},
            {"name": b"beta\x1b[2J", "paused": 1, "removed": 1, "budget_tokens": 500},
        ],
    )  # fmt: skip
    first_tokens = {"counts": [1, *[0] * (len(TTFT_BUCKETS_S) - 1), 2], "sum": 1.5}
    engine.publish(
        clock.monotonic_ns(), "http.0", num_tenants=1,
        tenants=[{"name": b"acme", "rejections": rejections, "ttft": first_tokens}],
    )  # fmt: skip


def test_an_engine_that_does_not_run_is_gone(source: LiveSource) -> None:
    """The frame is empty, and nothing is made on disk."""
    frame = source.read()
    assert frame.liveness is Liveness.GONE
    assert frame.processes == ()


def test_a_frame_has_what_the_pages_say(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """Names, counts, promises from the directory, ages from stamps."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    engine.promise("interactive", ttft_ms=2000, itl_ms=250)
    write_tenants(engine, clock)
    clock.now_s += 0.5
    frame = source.read()
    assert frame.liveness is Liveness.LIVE
    assert frame.age_s == pytest.approx(0.5)
    assert (frame.totals.waiting, frame.totals.running, frame.held_blocks) == (4, 2, 40)
    acme, beta = frame.tenants
    assert (acme.name, acme.weight, acme.share_used) == ("acme", 2.0, 0.75)
    assert (acme.removed, beta.removed) == (False, True)
    assert acme.budget_tokens is None
    assert acme.oldest_wait_s == pytest.approx(1.5)
    assert acme.rejections == {"shed_predicted": 3}
    assert (sum(acme.ttft.counts), acme.ttft.sum_s) == (3, 1.5)
    assert (beta.rejections, beta.ttft.counts) == ({}, ())
    assert (beta.paused, beta.budget_tokens) == (True, 500)
    assert frame.classes[0].ttft_ms == 2000
    assert frame.replicas[0].last_step_age_s == pytest.approx(0.52)
    assert frame.executors[0].model == "paper-1b"
    assert [process.child for process in frame.processes] == [
        "janitor", "executor.0.0", "scheduler", "http.0",
    ]  # fmt: skip


def test_a_process_in_a_step_says_for_how_long_it_may_be_silent(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """What is left of that is in the frame; of one that is idle there is nothing."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    until_ns = clock.monotonic_ns() + 30 * NS_PER_S
    engine.beat_busy("executor.0.0", clock.monotonic_ns(), until_ns)
    clock.now_s += 4.0
    left = {process.child: process.patience_s for process in source.read().processes}
    assert left["executor.0.0"] == pytest.approx(26.0)
    assert left["http.0"] is None
    clock.now_s += 60.0
    assert source.read().processes[1].patience_s == 0.0


def test_a_name_cannot_move_the_cursor(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """Control characters are shown as question marks."""
    write_tenants(EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns()), clock)
    assert source.read().tenants[1].name == "beta?[2J"


def test_silence_is_seen_within_two_seconds(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """With the age of what is shown; heartbeats age one by one."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    write_tenants(engine, clock)
    clock.now_s += 1.9
    engine.beat(clock.monotonic_ns(), "http.0")
    frame = source.read()
    assert frame.liveness is Liveness.STALE
    assert frame.age_s == pytest.approx(1.9)
    ages = {process.child: process.heartbeat_age_s for process in frame.processes}
    assert ages["scheduler"] == pytest.approx(1.9)
    assert ages["http.0"] == pytest.approx(0.0)


def test_an_engine_that_ended_keeps_its_last_frame_and_another_is_found(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """GONE with its age; then the new instance, mapped anew."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    write_tenants(engine, clock)
    source.read()
    engine.directory.remove()
    clock.now_s += 3.0
    gone = source.read()
    assert (gone.liveness, len(gone.tenants)) == (Liveness.GONE, 2)
    assert gone.age_s == pytest.approx(3.0)
    again = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    again.publish(clock.monotonic_ns(), "scheduler", num_running=77)
    frame = source.read()
    assert (frame.liveness, frame.totals.running, frame.tenants) == (Liveness.LIVE, 77, ())


def test_an_engine_that_ended_is_gone_within_a_second(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """It is not looked for at every look, but soon enough."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    write_tenants(engine, clock)
    source.read()
    engine.directory.remove()
    clock.now_s += 1.0
    assert source.read().liveness is Liveness.GONE


def test_an_engine_that_only_starts_is_shown_as_far_as_it_is(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """Processes are known before the scheduler has published."""
    EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    frame = source.read()
    assert (frame.liveness, frame.age_s, len(frame.processes)) == (Liveness.STALE, 0.0, 4)
    assert frame.tenants == ()


def test_a_broken_page_is_left_out(tmp_path: Path, source: LiveSource, clock: StageClock) -> None:
    """A file of another version stops nothing."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    write_tenants(engine, clock)
    path = engine.directory.board("executor.0.0")
    path.unlink()
    path.write_bytes(b"\0" * 4096)
    frame: Frame = source.read()
    assert frame.executors == ()
    assert len(frame.tenants) == 2


def test_an_engine_of_another_version_says_so(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """Instead of looking as if it never started."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    assert source.read().fault == ""
    path = engine.directory.board("supervisor")
    path.unlink()
    path.write_bytes(b"\0" * 4096)
    clock.now_s += 1.0
    frame = source.read()
    assert "another layout" in frame.fault
    assert "another layout" in state_of(frame)


def test_a_page_whose_file_was_replaced_is_mapped_anew(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """As the engine's own readers do."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    write_tenants(engine, clock)
    source.read()
    clock.now_s += 1.0
    engine.replace_page(clock.monotonic_ns(), "scheduler", num_running=55)
    assert source.read().totals.running == 55


def test_reading_opens_nothing_for_writing(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """The engine's files are mapped read-only, and none of them is left open."""
    write_tenants(EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns()), clock)
    before = set(os.listdir("/proc/self/fd"))
    source.read()
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 10
    maps = Path("/proc/self/maps").read_text().splitlines()
    ours = [line for line in maps if "board.scheduler" in line]
    assert any(line.split()[1].startswith("r--") for line in ours)


Answer = Callable[[ControlCall], ControlReply]


@contextmanager
def admin_worker(directory: RunDirectory, answer: Answer, worker: int = 0) -> Iterator[set[bytes]]:
    """Serve control calls as an admin worker does, in a thread; give the peers that have called."""
    peers: set[bytes] = set()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    port: RouterPort[ControlCall, ControlReply] = RouterPort(
        context, directory.admin_url(worker), Codec(ControlCall), Codec(ControlReply)
    )
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            if port.socket.poll(20):
                for received in port.receive(8):
                    peers.add(received.peer)
                    port.send(answer(received.message), received.peer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield peers
    finally:
        done.set()
        thread.join()
        port.close()
        context.destroy(linger=0)


def test_a_command_goes_to_the_admin_pool_with_key_and_actor(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """So that it is checked and audited there like any other."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    key = engine.directory.write_admin_key()
    seen: list[ControlCall] = []

    def answer(call: ControlCall) -> ControlReply:
        seen.append(call)
        return ControlReply(call.call_id, result={"cancelled": 2})

    with admin_worker(engine.directory, answer):
        assert source.call("cancel", {"tenant": "acme"}) == {"cancelled": 2}
    assert (seen[0].command, seen[0].args, seen[0].key) == ("cancel", {"tenant": "acme"}, key)
    assert seen[0].actor.startswith("top ")


def greeting(call: ControlCall) -> ControlReply:
    """Answer any command."""
    return ControlReply(call.call_id, result={"heard": call.command})


def test_one_connection_serves_for_many_commands(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """Asking again and again costs no connection each, from whatever thread it comes."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    engine.directory.write_admin_key()
    with admin_worker(engine.directory, greeting) as peers:
        for command in ("status", "tenants"):
            assert source.call(command, {}) == {"heard": command}
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda _: source.call("requests", {}), range(8)))
    assert answers == [{"heard": "requests"}] * 8
    assert len(peers) == 1


def test_commands_go_to_the_engine_that_has_taken_the_place_of_another(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """A new instance under the same name has another key, and no line of the old one."""
    keys = []

    def answer(call: ControlCall) -> ControlReply:
        keys.append(call.key)
        return greeting(call)

    expected = []
    for _ in range(2):
        engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
        expected.append(engine.directory.write_admin_key())
        with admin_worker(engine.directory, answer):
            source.call("status", {})
        engine.directory.remove()
    assert keys == expected


def test_a_silent_worker_is_passed_over_and_not_asked_first_again(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """The line goes on with the worker that answers."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    engine.directory.write_admin_key()
    asked: list[str] = []

    def silent(call: ControlCall) -> ControlReply:
        asked.append(call.command)
        return ControlReply(call.call_id + 1000)

    with (
        admin_worker(engine.directory, silent, 0),
        admin_worker(engine.directory, greeting, 1),
    ):
        for command in ("status", "tenants"):
            assert source.call(command, {}) == {"heard": command}
    assert asked == ["status"]


def test_a_refusal_is_one_line(tmp_path: Path, source: LiveSource, clock: StageClock) -> None:
    """What the engine said."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    engine.directory.write_admin_key()

    def answer(call: ControlCall) -> ControlReply:
        return ControlReply(call.call_id, error="there is no tenant 'x'", code="not_found")

    with (
        admin_worker(engine.directory, answer),
        pytest.raises(ControlError, match="no tenant 'x'"),
    ):
        source.call("pause", {"tenant": "x"})


def test_without_engine_or_key_a_command_says_so(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """The message tells what to do."""
    with pytest.raises(ControlError, match="not running"):
        source.call("status", {})
    EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    with pytest.raises(ControlError, match="HEADRACE_ADMIN_KEY"):
        source.call("status", {})


def test_workers_that_are_silent_do_not_hold_one_up_for_long(
    tmp_path: Path, source: LiveSource, clock: StageClock
) -> None:
    """None answers: that is said, within the bound of a second each."""
    engine = EngineOnPaper(tmp_path / "base", "paper", clock.monotonic_ns())
    engine.directory.write_admin_key()
    (engine.directory.path / "admin.0.sock").touch()
    with pytest.raises(ControlError, match="none of 1 admin workers answers"):
        source.call("status", {})
