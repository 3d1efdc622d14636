"""Reading a whole engine: what is there is read whole, what is not there is missing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from frontends.board_source import BoardSource
from ipc.board import BoardWriter, board_layout
from ipc.heartbeat import HEARTBEATS_LAYOUT, HeartbeatLine, HeartbeatState
from ipc.layout import create_segment
from ipc.pages import HTTP_PAGE, SCHEDULER_PAGE
from ipc.run_directory import RunDirectory
from ipc.segment import Segment
from tests.support.control_plane.boards import NOW_NS
from tests.support.control_plane.control_rig import StoppedClock

SLOTS = {"scheduler": 1, "http.0": 2, "janitor": 3}


@pytest.fixture
def directory(socket_directory: Path) -> Iterator[RunDirectory]:
    """Give an empty run directory."""
    directory = RunDirectory.claim("x", socket_directory / "run")
    yield directory
    directory.remove()


def write_page(directory: RunDirectory, child: str, requests: int, epoch: int = 1) -> None:
    """Create an http page and publish it."""
    segment = create_segment(directory.board(child), board_layout(HTTP_PAGE))
    writer = BoardWriter(segment, HTTP_PAGE, epoch)
    writer.page["requests"] = requests
    writer.publish(NOW_NS)


def test_an_empty_directory_is_an_engine_without_pages(directory: RunDirectory) -> None:
    """Nothing is there yet; that is no error."""
    boards = BoardSource(directory, SLOTS, StoppedClock()).read()
    assert (boards.taken_ns, boards.pages, boards.heartbeats) == (NOW_NS, {}, {})


def test_pages_and_heartbeats_appear_as_they_are_made(directory: RunDirectory) -> None:
    """The reader is older than what it reads; a page without a publication is not there."""
    source = BoardSource(directory, SLOTS, StoppedClock())
    source.read()
    create_segment(directory.board("scheduler"), board_layout(SCHEDULER_PAGE))
    write_page(directory, "http.0", requests=7, epoch=4)
    heartbeats = create_segment(directory.heartbeats, HEARTBEATS_LAYOUT)
    HeartbeatLine(heartbeats, SLOTS["janitor"]).stamp(HeartbeatState.IDLE, NOW_NS - 5)
    boards = source.read()
    assert list(boards.pages) == ["http.0"]
    page = boards.pages["http.0"]
    assert (page.epoch, page.written_ns, int(page.record["requests"])) == (4, NOW_NS, 7)
    assert boards.heartbeats["janitor"].stamp_ns == NOW_NS - 5


def test_a_replaced_file_is_read_anew(directory: RunDirectory) -> None:
    """The old mapping would show the dead page for ever."""
    source = BoardSource(directory, SLOTS, StoppedClock())
    write_page(directory, "http.0", requests=1)
    assert int(source.read().pages["http.0"].record["requests"]) == 1
    directory.board("http.0").unlink()
    assert source.read().pages == {}
    write_page(directory, "http.0", requests=2)
    assert int(source.read().pages["http.0"].record["requests"]) == 2


def test_a_page_of_another_layout_is_left_out(directory: RunDirectory) -> None:
    """Bytes that mean something else are never shown as numbers."""
    Segment.create(directory.board("http.0"), 4096)
    create_segment(directory.board("scheduler"), board_layout(HTTP_PAGE))
    assert BoardSource(directory, SLOTS, StoppedClock()).read().pages == {}


def test_a_read_is_a_copy(directory: RunDirectory) -> None:
    """What was read does not change under a renderer when the process publishes again."""
    source = BoardSource(directory, SLOTS, StoppedClock())
    write_page(directory, "http.0", requests=1)
    before = source.read()
    writer = BoardWriter(Segment.open(directory.board("http.0")), HTTP_PAGE, 1)
    for requests in range(2, 6):
        writer.page["requests"] = requests
        writer.publish(NOW_NS)
    assert int(before.pages["http.0"].record["requests"]) == 1
    assert int(source.read().pages["http.0"].record["requests"]) == 5
