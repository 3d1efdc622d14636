"""Mapped files: whole or not at all."""

import mmap
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ipc.errors import SegmentError, SegmentSpaceError
from ipc.segment import Segment, available_bytes
from tests.support.processes.open_files import open_files

CREATE_UNDER_A_LIMIT = """
import resource, sys
from pathlib import Path
from ipc.errors import SegmentSpaceError
from ipc.segment import Segment

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
path = Path(sys.argv[1])
try:
    Segment.create(path, 8192)
except SegmentSpaceError as error:
    print(error.needed_bytes, path.exists())
"""


def test_a_new_segment_is_private_zero_and_allocated(tmp_path: Path) -> None:
    """The file has mode 0600, only zeros, and all its blocks at once."""
    segment = Segment.create(tmp_path / "s", 100_000)
    info = (tmp_path / "s").stat()
    assert stat.S_IMODE(info.st_mode) == 0o600
    assert (info.st_size, segment.size_bytes) == (100_000, 100_000)
    assert info.st_blocks * 512 >= 100_000
    assert bytes(segment.buffer) == bytes(100_000)


def test_two_mappings_share_their_bytes(tmp_path: Path) -> None:
    """What one process stores, another one that opened the file sees."""
    one = Segment.create(tmp_path / "s", 4096)
    two = Segment.open(tmp_path / "s")
    one.buffer[17] = 5
    assert two.buffer[17] == 5


def test_a_read_only_mapping_cannot_be_written(tmp_path: Path) -> None:
    """The memory itself refuses."""
    Segment.create(tmp_path / "s", 4096)
    segment = Segment.open(tmp_path / "s", readonly=True)
    with pytest.raises(TypeError):
        segment.buffer[0] = 1


def test_a_segment_is_created_once(tmp_path: Path) -> None:
    """Creating over an existing file is an error and leaves it alone."""
    Segment.create(tmp_path / "s", 4096).buffer[0] = 9
    with pytest.raises(SegmentError, match="File exists"):
        Segment.create(tmp_path / "s", 4096)
    assert Segment.open(tmp_path / "s").buffer[0] == 9


def test_a_segment_has_its_name_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then whoever looks for it finds nothing, afterwards all of it and nothing beside."""
    link = os.link

    def whole(unnamed: str, path: Path) -> None:
        assert not path.exists()
        assert Path(unnamed).read_bytes() == b"head" + bytes(4092)
        link(unnamed, path)

    monkeypatch.setattr(os, "link", whole)
    Segment.create(tmp_path / "s", 4096, b"head")
    assert [each.name for each in tmp_path.iterdir()] == ["s"]


def test_too_little_room_is_said_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that cannot fit names needed and available bytes, and takes and leaves nothing."""
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: pytest.fail("took memory that is short"))
    needed = available_bytes(tmp_path) + 2**40
    with pytest.raises(SegmentSpaceError) as caught:
        Segment.create(tmp_path / "s", needed)
    assert caught.value.needed_bytes == needed
    assert 0 <= caught.value.available_bytes < needed
    assert str(needed) in str(caught.value)
    assert str(caught.value.available_bytes) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_room_that_is_refused_after_the_check_is_an_error_too(tmp_path: Path) -> None:
    """When the file system promises room and then does not give it, nobody gets a SIGBUS later."""
    result = subprocess.run(
        [sys.executable, "-c", CREATE_UNDER_A_LIMIT, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "8192 False\n"


@pytest.mark.parametrize("content", [None, b""])
def test_what_cannot_be_mapped_is_named(tmp_path: Path, content: bytes | None) -> None:
    """A missing or an empty file is SegmentError with the path in it."""
    if content is not None:
        (tmp_path / "s").write_bytes(content)
    with pytest.raises(SegmentError, match=str(tmp_path / "s")):
        Segment.open(tmp_path / "s")


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    """A name that points elsewhere is not opened."""
    Segment.create(tmp_path / "real", 4096)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(SegmentError):
        Segment.open(tmp_path / "link")


def test_a_closed_segment_is_gone(tmp_path: Path) -> None:
    """After `close` the buffer is refused, twice closing is once, and no fd is left open."""
    segment = Segment.create(tmp_path / "s", mmap.PAGESIZE)
    segment.close()
    segment.close()
    with pytest.raises(SegmentError, match="closed"):
        _ = segment.buffer
    assert not any(tmp_path in file.parents for file in open_files(os.getpid()))
