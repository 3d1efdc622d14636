"""A child's first lines, in real processes: setup, heartbeat, SIGTERM, and the parent's death."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from ipc.board import board_layout
from ipc.child import (
    Child,
    ChildSetup,
    child_command,
    die_with_parent,
    inherited_fds,
    read_setup,
    write_setup,
)
from ipc.doorbell import Doorbell
from ipc.errors import ChildSetupError
from ipc.heartbeat import HEARTBEATS_LAYOUT, Heartbeats, HeartbeatState
from ipc.layout import create_segment
from ipc.pages import HTTP_PAGE
from ipc.run_directory import RunDirectory
from ipc.segment import Segment
from tests.ipc import child_process, parent_process
from tests.support.processes.ending import ending

DEADLINE_S = 60


@pytest.fixture
def run_directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.claim("engine", tmp_path / "base")


@pytest.fixture
def heartbeats(run_directory: RunDirectory) -> Segment:
    return create_segment(run_directory.heartbeats, HEARTBEATS_LAYOUT)


@pytest.fixture
def death_pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as reader, open(write_end, "wb") as writer:
        yield reader, writer


def make_setup(run_directory: RunDirectory, **fds: int) -> ChildSetup:
    return ChildSetup(
        child_id="http.0",
        epoch=3,
        slot=5,
        run_dir=str(run_directory.path),
        parent_pid=os.getpid(),
        peers={"http.0": 5, "scheduler": 6},
        fds=fds,
        config=msgspec.Raw(b'{"name":"engine"}'),
    )


def start_child(setup: ChildSetup) -> subprocess.Popen[str]:
    fd = write_setup(setup)
    command = [sys.executable, "-P", child_process.__file__, str(fd)]
    process = subprocess.Popen(
        command,
        pass_fds=inherited_fds(setup, fd),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(fd)
    return process


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_setup_passes_through_its_fd(run_directory: RunDirectory) -> None:
    """What the parent wrote is what the child reads, configuration untouched."""
    setup = make_setup(run_directory, death=7)
    fd = write_setup(setup)
    assert read_setup(fd) == setup
    assert bytes(read_setup(fd).config) == b'{"name":"engine"}'
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_the_command_keeps_the_current_directory_off_the_path() -> None:
    """-P: a folder `core` where the operator happens to stand is not imported."""
    assert child_command("core.runtime.janitor", 5)[1:] == ["-P", "-m", "core.runtime.janitor", "5"]


@pytest.mark.parametrize(
    "argv", [["x"], ["x", "abc"], ["x", "-1"], ["x", "1", "2"], ["x", "99999"]]
)
def test_a_process_started_by_hand_says_so(argv: list[str]) -> None:
    """Without a readable setup there is one error, and nothing is installed."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ChildSetupError):
        Child.attach(argv)
    assert signal.getsignal(signal.SIGTERM) is before


def test_garbage_is_no_setup() -> None:
    """Bytes that are no setup are an error that names the fd."""
    read_end, write_end = os.pipe()
    os.close(write_end)
    with pytest.raises(ChildSetupError, match=f"fd {read_end}"):
        read_setup(read_end)
    os.close(read_end)


@pytest.mark.slow
def test_a_child_serves_and_stops(
    run_directory: RunDirectory, heartbeats: Segment, death_pipe: tuple[BinaryIO, BinaryIO]
) -> None:
    """It stamps its own line, shows its epoch, logs with its name, and SIGTERM wakes its loop."""
    with ending(start_child(make_setup(run_directory, death=death_pipe[0].fileno()))) as process:
        assert answer(process) == "serving http.0 3"
        beat = Heartbeats(heartbeats).read(5)
        assert (beat.epoch, beat.state) == (3, HeartbeatState.IDLE)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert answer(process) == "stopping True"
        _, log = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        assert "INFO http.0 serving under epoch 3" in log
        assert Heartbeats(heartbeats).read(5).state is HeartbeatState.DRAINING


@pytest.mark.slow
def test_the_end_of_the_death_pipe_reaches_the_child(
    run_directory: RunDirectory, heartbeats: Segment, death_pipe: tuple[BinaryIO, BinaryIO]
) -> None:
    """When the last write end is closed, the child's poller wakes and it knows why."""
    with ending(start_child(make_setup(run_directory, death=death_pipe[0].fileno()))) as process:
        assert answer(process).startswith("serving")
        death_pipe[1].close()
        assert answer(process) == "orphaned"
        process.communicate(timeout=DEADLINE_S)


@pytest.mark.slow
def test_the_kernel_kills_a_child_with_its_parent(
    run_directory: RunDirectory, heartbeats: Segment, death_pipe: tuple[BinaryIO, BinaryIO]
) -> None:
    """`kill -9` of the parent ends the child even while the death pipe is still held open."""
    held = death_pipe[0].fileno()
    command = [sys.executable, parent_process.__file__, str(run_directory.path), str(held)]
    parent = subprocess.Popen(
        command,
        pass_fds=[held],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with ending(parent):
        pid, serving = sorted([answer(parent), answer(parent)])  # whoever is first to say it
        assert serving == "serving http.0 1"
        child_pidfd = os.pidfd_open(int(pid))
        parent.kill()
        assert select.select([child_pidfd], [], [], DEADLINE_S)[0]
        os.close(child_pidfd)


def test_a_child_of_a_dead_parent_does_not_start() -> None:
    """A parent that died before the kernel was asked is noticed by its pid."""
    script = "from ipc.child import die_with_parent; die_with_parent(2**22 + 7)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 1
    assert "died during the start" in result.stderr
    assert die_with_parent.__doc__


def attached(run_directory: RunDirectory, heartbeats: Segment, **fds: int) -> Child:
    return Child(make_setup(run_directory, **fds), heartbeats, Doorbell.create())


def test_inherited_fds_are_found_by_name(run_directory: RunDirectory, heartbeats: Segment) -> None:
    """Doorbells and sockets come back as objects; an unknown name is an error."""
    bell, listener = Doorbell.create(), socket.create_server(("127.0.0.1", 0))
    child = attached(
        run_directory, heartbeats, **{"plan.0.0": bell.fileno(), "http": listener.fileno()}
    )
    child.doorbell("plan.0.0").ring()
    assert bell.clear()
    with child.listening_socket("http") as taken:
        assert taken.getsockname() == listener.getsockname()
        listener.detach()
    with pytest.raises(ChildSetupError, match=r"http\.0 was given no fd named 'plan\.0\.1'"):
        child.doorbell("plan.0.1")
    bell.close()
    child.stop_doorbell.close()


def test_peers_are_seen_by_their_names(run_directory: RunDirectory, heartbeats: Segment) -> None:
    """Heartbeat and epoch of another child; an unknown one is an error."""
    child = attached(run_directory, heartbeats)
    assert child.peer_epoch("scheduler") == 0
    child.stamp(HeartbeatState.BUSY, 7, busy_until_ns=9)
    child.serving()
    assert child.peer("http.0").busy_until_ns == 9
    assert child.peer_epoch("http.0") == 3
    with pytest.raises(ChildSetupError, match="janitor"):
        child.peer("janitor")
    child.stop_doorbell.close()


def test_a_child_writes_its_own_page_and_reads_those_of_others(
    run_directory: RunDirectory, heartbeats: Segment
) -> None:
    """What it publishes is found under its name and epoch, by whoever may only read."""
    create_segment(run_directory.board("http.0"), board_layout(HTTP_PAGE)).close()
    child = attached(run_directory, heartbeats)
    child.page(HTTP_PAGE).publish(now_ns=5)
    snapshot = child.page_of("http.0", HTTP_PAGE).read()
    assert (snapshot.stamp_ns, snapshot.epoch) == (5, child.epoch)
    child.stop_doorbell.close()


def test_what_is_passed_on_is_listed_once(run_directory: RunDirectory) -> None:
    """The setup's own fd and every inherited one, each once, for `pass_fds`."""
    setup = make_setup(run_directory, death=9, a=4, b=4)
    assert inherited_fds(setup, 12) == (12, 4, 9)
