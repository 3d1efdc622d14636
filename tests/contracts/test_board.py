"""What a board page promises to its readers, in a file and in plain memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tests.contracts.board_writer_process as writer_process
from ipc.board import BoardReader, BoardWriter, board_layout
from ipc.errors import LayoutVersionError
from ipc.layout import anonymous_segment, create_segment
from ipc.segment import Segment

DTYPE = np.dtype([("steps", np.uint64), ("name", "S8"), ("values", np.int32, (100,))])
ROWS = np.dtype([("steps", np.uint64), ("num_rows", np.int32), ("rows", np.int64, (50,))])


@pytest.fixture(params=["file", "anonymous"])
def segment(request: pytest.FixtureRequest, tmp_path: Path) -> Segment:
    layout = board_layout(DTYPE)
    if request.param == "anonymous":
        return anonymous_segment(layout)
    return create_segment(tmp_path / "board.x", layout)


def test_nothing_published_is_a_zero_page(segment: Segment) -> None:
    """Before the first publication a reader sees zeros, epoch 0 and stamp 0."""
    snapshot = BoardReader(segment, DTYPE).read()
    assert (snapshot.epoch, snapshot.stamp_ns, snapshot.stale) == (0, 0, False)
    assert snapshot.page["steps"] == 0
    assert not snapshot.page["values"].any()


def test_a_published_page_is_seen_whole(segment: Segment) -> None:
    """Fields, epoch and stamp are those of the publication."""
    writer = BoardWriter(segment, DTYPE, epoch=7)
    writer.page["steps"] = 41
    writer.page["name"] = b"abc"
    writer.page["values"][:] = np.arange(100)
    writer.publish(now_ns=123)
    snapshot = BoardReader(segment, DTYPE).read()
    assert (snapshot.epoch, snapshot.stamp_ns, snapshot.stale) == (7, 123, False)
    assert snapshot.page.shape == ()
    assert (int(snapshot.page["steps"]), snapshot.page["name"].item()) == (41, b"abc")
    assert snapshot.page["values"].tolist() == list(range(100))


def test_changes_are_seen_only_when_published(segment: Segment) -> None:
    """The writer's page is private until it is published, and so is the reader's copy."""
    writer, reader = BoardWriter(segment, DTYPE, epoch=1), BoardReader(segment, DTYPE)
    writer.publish(now_ns=1)
    first = reader.read()
    writer.page["steps"] = 5
    assert reader.read().page["steps"] == 0
    writer.publish(now_ns=2)
    assert reader.read().page["steps"] == 5
    assert first.page["steps"] == 0


def test_every_publication_is_newer_than_the_last(segment: Segment) -> None:
    """Readers always see the latest of many."""
    writer, reader = BoardWriter(segment, DTYPE, epoch=1), BoardReader(segment, DTYPE)
    for step in range(1, 10):
        writer.page["steps"] = step
        writer.publish(now_ns=step)
        assert reader.read().page["steps"] == step


def test_a_page_is_copied_once(segment: Segment) -> None:
    """A reader that looks often pays for what is new only."""
    writer, reader = BoardWriter(segment, DTYPE, epoch=1), BoardReader(segment, DTYPE)
    publish(writer, 1)
    first = reader.read()
    assert reader.read() is first
    publish(writer, 1)
    assert reader.read() is not first


def test_a_restarted_writer_starts_at_zero_under_its_epoch(segment: Segment) -> None:
    """The new instance's first page replaces the old one's last, also for attached readers."""
    old, reader = BoardWriter(segment, DTYPE, epoch=1), BoardReader(segment, DTYPE)
    for step in range(5):
        old.page["steps"] = step
        old.publish(now_ns=step + 1)
    BoardWriter(segment, DTYPE, epoch=2).publish(now_ns=9)
    snapshot = reader.read()
    assert (snapshot.epoch, snapshot.stamp_ns, int(snapshot.page["steps"])) == (2, 9, 0)


def test_a_torn_page_is_answered_with_the_last_good_one(segment: Segment) -> None:
    """Damage in the newest slot gives the page seen before, marked stale, until the next one."""
    writer, reader = BoardWriter(segment, DTYPE, epoch=1), BoardReader(segment, DTYPE)
    publish(writer, 1)
    assert reader.read().page["steps"] == 1
    publish(writer, 2)
    segment.buffer[board_layout(DTYPE).offsets["page_0"] + 20] ^= 1
    snapshot = reader.read()
    assert (int(snapshot.page["steps"]), snapshot.stamp_ns, snapshot.stale) == (1, 1, True)
    publish(writer, 3)
    assert (int(reader.read().page["steps"]), reader.read().stale) == (3, False)


def test_a_writer_that_dies_while_it_publishes_leaves_the_other_slot(segment: Segment) -> None:
    """The slot that is written next is not looked at before its sequence is stored: damage there
    leaves the newest whole page as the answer."""
    writer, reader = BoardWriter(segment, DTYPE, epoch=1), BoardReader(segment, DTYPE)
    publish(writer, 1)
    publish(writer, 2)
    sequences = board_layout(DTYPE).views(segment)["words"][:, 0]
    assert sorted(sequences.tolist()) == [1, 2]
    segment.buffer[board_layout(DTYPE).offsets[f"page_{sequences.argmin()}"]] ^= 1
    assert (int(reader.read().page["steps"]), reader.read().stale) == (2, False)


def test_of_the_rows_at_the_end_only_those_that_count_are_copied() -> None:
    """What lies beyond the number of rows reaches nobody, in more rows than before or in fewer, and
    damage there disturbs nobody."""
    segment = anonymous_segment(board_layout(ROWS))
    writer, reader = BoardWriter(segment, ROWS, epoch=1), BoardReader(segment, ROWS)
    writer.page["rows"] = np.arange(1, 51)
    for number in (0, 3, 50, 2, 1):
        writer.page["num_rows"] = number
        writer.publish(now_ns=1)
        page = reader.read().page
        assert page["num_rows"] == number
        assert page["rows"].tolist() == [*range(1, number + 1), *[0] * (50 - number)]
    publish(writer, 7)
    for slot in ("page_0", "page_1"):
        segment.buffer[board_layout(ROWS).offsets[slot] + ROWS.itemsize - 1] ^= 1
    assert (int(reader.read().page["steps"]), reader.read().stale) == (7, False)


def test_a_size_that_no_page_has_is_damage(segment: Segment) -> None:
    """A size that was torn gives the page seen before, marked stale."""
    writer, reader = BoardWriter(segment, DTYPE, epoch=1), BoardReader(segment, DTYPE)
    publish(writer, 1)
    reader.read()
    publish(writer, 2)
    for size in (0, 17):
        board_layout(DTYPE).views(segment)["words"][:, 4] = size
        assert (int(reader.read().page["steps"]), reader.read().stale) == (1, True)


def publish(writer: BoardWriter, step: int) -> None:
    writer.page["steps"] = step
    writer.publish(now_ns=step)


def test_readers_of_another_version_are_refused(segment: Segment) -> None:
    """A page laid out by another PAGE_VERSION, or with other fields, is LayoutVersionError."""
    with pytest.raises(LayoutVersionError, match="expected shape"):
        BoardReader(segment, np.dtype([("steps", np.uint64)]))
    board_layout(DTYPE, version=99).format(segment)
    with pytest.raises(LayoutVersionError, match="version 99"):
        BoardReader(segment, DTYPE)


def test_a_read_only_mapping_is_enough_for_readers(tmp_path: Path) -> None:
    """Readers never write, so they may map the file read-only."""
    writer = BoardWriter(create_segment(tmp_path / "b", board_layout(DTYPE)), DTYPE, epoch=1)
    reader = BoardReader(Segment.open(tmp_path / "b", readonly=True), DTYPE)
    publish(writer, 4)
    assert reader.read().page["steps"] == 4


@pytest.mark.slow
def test_no_page_is_ever_a_mixture(tmp_path: Path) -> None:
    """Beside a process that publishes without pause, every page is whole and none is older than
    the one before."""
    path, dtype = tmp_path / "board", writer_process.DTYPE
    reader = BoardReader(create_segment(path, board_layout(dtype)), dtype)
    process = subprocess.Popen([sys.executable, "-P", writer_process.__file__, str(path)])
    try:
        last = 0
        while last < 3000:
            assert process.poll() is None
            snapshot = reader.read()
            assert (snapshot.page["numbers"] == snapshot.stamp_ns).all()
            assert snapshot.stamp_ns >= last
            last = snapshot.stamp_ns
    finally:
        process.kill()
        process.wait()
