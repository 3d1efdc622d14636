"""A process's page of the board: what it shows to whoever looks, without being asked.

Owns: two slots, and that a reader gets a whole page or the last whole one it saw. Never knows: the
fields (`ipc.pages`). The writer fills the older slot while readers use the newer one. A seqlock
over one page would do on x86, but is unsafe on Arm from Python and stays odd when its writer dies;
here a dead writer leaves the newer slot whole.

    slot     a line: sequence u64 · stamp_ns u64 · epoch u64 · crc32 u64 · size u64 · zeros; and
             the page, of which the first `size` bytes count and the others are zero for everybody
    publish  into the slot with the smaller sequence: page, stamp, epoch, size, crc, then sequence
    read     copy the slot with the larger sequence; the crc over all of it must fit, else again

A reader is disturbed only if the writer publishes twice within its copy; after a few such tries it
returns the last good page marked stale. Pages of hundreds of tenants end with the rows of these, of
which few engines use many: to copy and sum those alone is what makes looking cheap.
"""

import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ipc.layout import LINE_BYTES, ArraySpec, Layout
from ipc.pages import PAGE_VERSION
from ipc.segment import Segment

_SEQUENCE: Final = 0
_CRC: Final = 3
_SIZE: Final = 4
_READ_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One page as it was published.

    `page` is a read-only copy, a structured array of shape (). `stamp_ns` 0: nothing was published
    yet, all fields are zero. `stale`: not the newest page, but the last that could be read whole.
    """

    page: npt.NDArray[np.void]
    epoch: int
    stamp_ns: int
    stale: bool = False
    sequence: int = 0  # of the publication: another one, another page


def board_layout(dtype: np.dtype[Any], version: int = PAGE_VERSION) -> Layout:
    """Return the layout of a page's segment."""
    return Layout(
        "board",
        version,
        {
            "words": ArraySpec(np.dtype(np.uint64), (2, LINE_BYTES // 8)),
            "page_0": ArraySpec(dtype, (1,)),
            "page_1": ArraySpec(dtype, (1,)),
        },
    )


class _Extent:
    """How many bytes of a page count: if it ends with rows right after their number (`num_rows`,
    `rows`), only as many of them.
    """

    __slots__ = ("_counter", "_row_bytes", "_rows_at", "_whole")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._counter, self._whole, names = "", dtype.itemsize, dtype.names or ()
        if len(names) > 1 and names[-2] == f"num_{names[-1]}":
            assert dtype.fields is not None
            rows, self._rows_at = dtype.fields[names[-1]][:2]
            self._counter, self._row_bytes = names[-2], rows.base.itemsize

    def of(self, page: npt.NDArray[np.void]) -> int:
        if not self._counter:
            return self._whole
        return self._rows_at + int(page[self._counter]) * self._row_bytes


class _BoardMemory:
    """The views that both ends use: per slot its words and its page as bytes."""

    __slots__ = ("pages", "words")

    def __init__(self, segment: Segment, dtype: np.dtype[Any]) -> None:
        arrays = board_layout(dtype).views(segment)
        self.words = [line.data for line in arrays["words"]]
        self.pages = [arrays["page_0"].view(np.uint8).data, arrays["page_1"].view(np.uint8).data]

    def newest(self) -> int:
        return int(self.words[1][_SEQUENCE] > self.words[0][_SEQUENCE])


class BoardWriter:
    """The writing end: fill `page`, then `publish`.

    `predecessor` is the page that the instance before published last, all zeros if there was none;
    counters go on from there.
    """

    def __init__(self, segment: Segment, dtype: np.dtype[Any], epoch: int) -> None:
        """Start a zero page of instance `epoch`; LayoutVersionError if the segment is another."""
        self.page: npt.NDArray[np.void] = np.zeros((), dtype)
        self.predecessor = BoardReader(segment, dtype).read().page
        self._bytes = _bytes_of(self.page)
        self._extent = _Extent(dtype)
        self._memory = _BoardMemory(segment, dtype)
        self._epoch = epoch
        self._sequence = max(words[_SEQUENCE] for words in self._memory.words)

    def publish(self, now_ns: int) -> None:
        """Show `page` as it is now; of the rows at its end those that it says there are."""
        used = self._bytes[: self._extent.of(self.page)]
        slot = 1 - self._memory.newest()
        words = self._memory.words[slot]
        self._sequence += 1
        self._memory.pages[slot][: len(used)] = used
        words[1] = now_ns
        words[2] = self._epoch
        words[_SIZE] = len(used)
        words[_CRC] = _checksum(self._sequence, now_ns, self._epoch, used)
        words[_SEQUENCE] = self._sequence


class BoardReader:
    """A reading end."""

    def __init__(self, segment: Segment, dtype: np.dtype[Any]) -> None:
        """Raises LayoutVersionError if the page has another version or layout."""
        self._memory = _BoardMemory(segment, dtype)
        self._dtype = dtype
        self._last = Snapshot(np.zeros((), dtype), 0, 0)

    def read(self) -> Snapshot:
        """Return the newest page, or the last good one marked stale.

        A page that was read before is not copied again.
        """
        for _ in range(_READ_ATTEMPTS):
            slot = self._memory.newest()
            sequence, stamp_ns, epoch, crc, size = self._memory.words[slot][:5]
            if sequence == self._last.sequence:
                return self._last
            page, used = self._copy(slot, size)
            if _checksum(sequence, stamp_ns, epoch, used) == crc:
                self._last = Snapshot(page, epoch, stamp_ns, sequence=sequence)
                return self._last
        return Snapshot(self._last.page, self._last.epoch, self._last.stamp_ns, stale=True)

    def _copy(self, slot: int, size: int) -> tuple[npt.NDArray[np.void], memoryview]:
        """Return a page with the first `size` bytes of a slot, or all that it has, and those."""
        page: npt.NDArray[np.void] = np.zeros((), self._dtype)
        used = _bytes_of(page)[:size]
        used[:] = self._memory.pages[slot][:size]
        page.flags.writeable = False
        return page, used


def _bytes_of(page: npt.NDArray[np.void]) -> memoryview:
    return page.reshape(1).view(np.uint8).data


def _checksum(sequence: int, stamp_ns: int, epoch: int, used: memoryview) -> int:
    head = b"%d %d %d %d" % (sequence, stamp_ns, epoch, len(used))
    return zlib.crc32(used, zlib.crc32(head))
