"""The tenant directory: versions, and what a reader sees of them."""

from pathlib import Path

import pytest

from ipc.directory import (
    DirectoryReader,
    DirectorySnapshot,
    DirectoryTenant,
    DirectoryWriter,
    directory_layout,
)
from ipc.errors import SegmentError
from ipc.layout import create_segment
from ipc.segment import Segment

SLOT_BYTES = 2 * 1024 * 1024


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return create_segment(tmp_path / "directory", directory_layout(SLOT_BYTES))


def tenants(count: int, num_keys: int = 1) -> DirectorySnapshot:
    made = (
        DirectoryTenant(
            name=f"tenant-{i}", key_sha256=(f"{i:064x}",) * num_keys, classes=("batch",)
        )
        for i in range(count)
    )
    return DirectorySnapshot(tenants=tuple(made), admin_key_sha256="ab")


def test_before_the_first_publication_it_is_empty(segment: Segment) -> None:
    """Version 0, no tenant."""
    assert DirectoryReader(segment).read() == DirectorySnapshot(version=0)


def test_a_publication_gets_the_next_version(segment: Segment) -> None:
    """Versions count from 1, also for a writer that takes over from another."""
    assert DirectoryWriter(segment).publish(tenants(1)).version == 1
    assert DirectoryWriter(segment).publish(tenants(2)).version == 2
    snapshot = DirectoryReader(segment).read()
    assert (snapshot.version, len(snapshot.tenants), snapshot.admin_key_sha256) == (2, 2, "ab")


def test_an_unchanged_directory_is_the_same_object(segment: Segment) -> None:
    """Looking costs no decoding until something changes."""
    writer, reader = DirectoryWriter(segment), DirectoryReader(segment)
    writer.publish(tenants(3))
    first = reader.read()
    assert reader.read() is first
    writer.publish(tenants(4))
    assert len(reader.read().tenants) == 4
    assert len(first.tenants) == 3


def test_readers_may_map_it_read_only(tmp_path: Path, segment: Segment) -> None:
    """Reading stores nothing."""
    DirectoryWriter(segment).publish(tenants(1))
    reader = DirectoryReader(Segment.open(tmp_path / "directory", readonly=True))
    assert reader.read().tenants[0].name == "tenant-0"


def test_four_thousand_tenants_fit() -> None:
    """The default size holds 4096 tenants with long names and eight keys each."""
    segment = Segment.anonymous(directory_layout().total_bytes)
    directory_layout().format(segment)
    DirectoryWriter(segment).publish(tenants(4096, num_keys=8))
    assert len(DirectoryReader(segment).read().tenants) == 4096


def test_a_directory_that_does_not_fit_is_refused(segment: Segment) -> None:
    """Too many keys are an error that names bytes; the old version stays."""
    writer, reader = DirectoryWriter(segment), DirectoryReader(segment)
    writer.publish(tenants(2))
    with pytest.raises(SegmentError, match="exceeds"):
        writer.publish(tenants(4096, num_keys=16))
    assert (writer.version, reader.read().version, len(reader.read().tenants)) == (1, 1, 2)


def test_a_damaged_slot_keeps_the_last_snapshot(segment: Segment) -> None:
    """A checksum that does not fit leaves the reader with what it had, until the next version."""
    writer, reader = DirectoryWriter(segment), DirectoryReader(segment)
    writer.publish(tenants(1))
    assert reader.read().version == 1
    writer.publish(tenants(2))
    segment.buffer[directory_layout(SLOT_BYTES).offsets["payloads"] + 10] ^= 1
    assert reader.read().version == 1
    writer.publish(tenants(3))
    assert (reader.read().version, len(reader.read().tenants)) == (3, 3)


def test_a_writer_that_dies_while_it_publishes_changes_nothing(segment: Segment) -> None:
    """Until the version word is stored, readers keep to the other slot."""
    writer = DirectoryWriter(segment)
    writer.publish(tenants(1))
    layout = directory_layout(SLOT_BYTES)
    layout.views(segment)["words"][0] = 0
    layout.views(segment)["payloads"][0, :100] = 0xFF
    assert DirectoryReader(segment).read().version == 1
