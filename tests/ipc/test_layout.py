"""Arrays at fixed offsets, and the header that says which."""

from pathlib import Path

import numpy as np
import pytest

from ipc.errors import LayoutVersionError
from ipc.layout import (
    ArraySpec,
    Layout,
    anonymous_segment,
    create_segment,
    read_parameters,
    records_layout,
)
from ipc.segment import Segment

RECORD = np.dtype([("a", np.int32), ("b", np.float64)], align=True)


def layout(version: int = 1, length: int = 10) -> Layout:
    arrays = {
        "small": ArraySpec(np.dtype(np.uint8), (3,)),
        "records": ArraySpec(RECORD, (length,)),
        "matrix": ArraySpec(np.dtype(np.int32), (4, 5)),
        "scalar": ArraySpec(np.dtype(np.int64)),
    }
    return Layout("test", version, arrays, (length, 7))


def test_every_array_begins_on_its_own_cache_line() -> None:
    """Offsets are multiples of 64, in order, and do not overlap."""
    made = layout()
    ends = [made.offsets[name] + spec.num_bytes for name, spec in made.arrays.items()]
    starts = [*made.offsets.values(), made.total_bytes]
    assert all(offset % 64 == 0 for offset in starts)
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=True))


def test_views_have_dtype_and_shape_and_share_memory(tmp_path: Path) -> None:
    """What is stored through one mapping is read through another."""
    views = layout().views(create_segment(tmp_path / "s", layout()))
    views["records"]["b"][9] = 2.5
    views["matrix"][3, 4] = -1
    views["scalar"][...] = 6
    seen = layout().views(Segment.open(tmp_path / "s"))
    assert (seen["records"]["b"][9], seen["matrix"][3, 4], int(seen["scalar"])) == (2.5, -1, 6)
    assert (seen["records"].dtype, seen["matrix"].shape, seen["scalar"].shape) == (
        RECORD,
        (4, 5),
        (),
    )


def test_views_of_a_read_only_segment_are_read_only(tmp_path: Path) -> None:
    """A reader cannot store by mistake."""
    create_segment(tmp_path / "s", layout())
    views = layout().views(Segment.open(tmp_path / "s", readonly=True))
    with pytest.raises(ValueError, match="read-only"):
        views["small"][0] = 1


def test_parameters_are_found_without_the_layout() -> None:
    """A reader that knows only the file learns from the header what the layout was made from."""
    assert read_parameters(anonymous_segment(layout(length=12))) == (12, 7, 0, 0, 0)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (layout(version=2), "version 1, known is 2"),
        (layout(length=11), "no test of the expected shape"),
    ],
)
def test_another_layout_is_refused(other: Layout, message: str) -> None:
    """Version and shape of both sides must agree."""
    with pytest.raises(LayoutVersionError, match=message):
        other.views(anonymous_segment(layout()))


def test_a_renamed_field_is_another_layout() -> None:
    """Equal sizes do not suffice: names and dtypes count."""
    renamed = np.dtype([("a", np.int32), ("c", np.float64)], align=True)
    segment = anonymous_segment(records_layout("rows", RECORD, 4))
    with pytest.raises(LayoutVersionError):
        records_layout("rows", renamed, 4).views(segment)


@pytest.mark.parametrize("size_bytes", [10, 64, 4096])
def test_unformatted_bytes_are_refused(size_bytes: int) -> None:
    """Memory without the magic is not interpreted."""
    with pytest.raises(LayoutVersionError, match="no header"):
        layout().views(Segment.anonymous(size_bytes))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    """A header that promises more bytes than there are is refused, not mapped beyond the end."""
    create_segment(tmp_path / "s", layout())
    with (tmp_path / "s").open("r+b") as file:
        file.truncate(layout().total_bytes - 64)
    with pytest.raises(LayoutVersionError, match="shorter"):
        layout().views(Segment.open(tmp_path / "s"))
