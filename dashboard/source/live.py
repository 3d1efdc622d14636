"""Frames of a running engine, from its shared memory: nobody there is asked, or notices.

Owns: the mapped pages of one engine, and finding the engine anew when it was replaced. Never knows:
what a field means (`dashboard.reading`). Pages are mapped read-only and looked at a few times a
second; a stopped dashboard holds no lock and no queue of the engine's.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from dashboard.control_client import ControlClient
from dashboard.frame import Frame, Liveness
from dashboard.reading import NS_PER_S, Reading, ReadPage, child_names, frame_of
from ipc.board import BoardReader
from ipc.directory import DirectoryReader, DirectorySnapshot
from ipc.errors import IpcError, LayoutVersionError, SegmentError
from ipc.heartbeat import Heartbeat, Heartbeats
from ipc.pages import EXECUTOR_PAGE, HTTP_PAGE, SCHEDULER_PAGE, SUPERVISOR_PAGE
from ipc.run_directory import RunDirectory
from ipc.segment import Segment

LAYOUTS = {
    "supervisor": SUPERVISOR_PAGE,
    "scheduler": SCHEDULER_PAGE,
    "executor": EXECUTOR_PAGE,
    "http": HTTP_PAGE,
}


FIND_EVERY_NS = NS_PER_S
OTHER_VERSION = "its pages have another layout: use the headrace that started it"


@dataclass(frozen=True, slots=True)
class MappedPage:
    """A reader and the file it reads."""

    path: Path
    inode: int
    reader: BoardReader

    def is_replaced(self) -> bool:
        """Tell whether another file, or none, has taken its place."""
        try:
            return self.path.stat().st_ino != self.inode
        except OSError:
            return True


@dataclass(slots=True)
class Attached:
    """One instance of an engine and what of it is mapped."""

    directory: RunDirectory
    pages: dict[str, MappedPage] = field(default_factory=dict)
    heartbeats: Heartbeats | None = None
    tenants: DirectoryReader | None = None
    found_ns: int = 0  # when it was last seen to live

    def forget_replaced_pages(self) -> None:
        """Map pages anew whose files are others now."""
        self.pages = {child: page for child, page in self.pages.items() if not page.is_replaced()}


class LiveSource(ControlClient):
    """The engine called `name`, whenever it runs."""

    def __init__(
        self,
        name: str,
        monotonic_ns: Callable[[], int],
        wall_s: Callable[[], float],
        base: Path | None = None,
        admin_key: str = "",
    ) -> None:
        """Look for the engine in `base` (default: where engines of this user are)."""
        super().__init__(name, base, admin_key)
        self.title = name
        self._name = name
        self._base = base
        self._monotonic_ns = monotonic_ns
        self._wall_s = wall_s
        self._attached: Attached | None = None
        self._last: Frame | None = None

    def read(self) -> Frame:
        """Return what the board shows now."""
        attached = self._find()
        if attached is None:
            return self._gone()
        frame = frame_of(self._reading(attached))
        if not frame.processes and _is_of_another_version(attached):
            frame = msgspec.structs.replace(frame, fault=OTHER_VERSION)
        self._last = frame
        return frame

    def _find(self) -> Attached | None:
        """Return the living engine; another instance of it is mapped anew. Whether it lives is
        looked up once a second: that opens files.
        """
        attached, now_ns = self._attached, self._monotonic_ns()
        if attached is not None and 0 <= now_ns - attached.found_ns < FIND_EVERY_NS:
            return attached
        try:
            directory = RunDirectory.find(self._name, self._base)
        except IpcError:
            self._attached = None
            return None
        if attached is None or attached.directory.owner != directory.owner:
            attached = self._attached = Attached(directory)
        attached.found_ns = now_ns
        attached.forget_replaced_pages()
        return attached

    def _gone(self) -> Frame:
        now_s = self._monotonic_ns() / NS_PER_S
        if self._last is None:
            return Frame(now_s, self._wall_s(), self._name)
        return msgspec.structs.replace(
            self._last,
            liveness=Liveness.GONE,
            age_s=self._last.age_s + now_s - self._last.taken_s,
            taken_s=now_s,
            wall_s=self._wall_s(),
        )

    def _reading(self, attached: Attached) -> Reading:
        supervisor = _read_page(attached, "supervisor")
        children = child_names(supervisor.record) if supervisor else []
        found = {child: _read_page(attached, child) for child in children}
        pages = {child: page for child, page in found.items() if page is not None}
        if supervisor is not None:
            pages["supervisor"] = supervisor
        return Reading(
            self._monotonic_ns(),
            self._wall_s(),
            self._name,
            pages,
            _read_heartbeats(attached, children),
            _read_directory(attached),
        )


def _read_page(attached: Attached, child: str) -> ReadPage | None:
    """Return a page, None if it is not there, of another version, or still blank."""
    layout = LAYOUTS.get(child.partition(".")[0])
    if layout is None:
        return None
    with suppress(OSError, SegmentError):
        snapshot = _reader(attached, child, layout).read()
        if snapshot.stamp_ns:
            return ReadPage(snapshot.page.reshape(1)[0], snapshot.epoch, snapshot.stamp_ns)
    return None


def _reader(attached: Attached, child: str, layout: np.dtype[np.void]) -> BoardReader:
    mapped = attached.pages.get(child)
    if mapped is None:
        path = attached.directory.board(child)
        inode = path.stat().st_ino
        reader = BoardReader(Segment.open(path, readonly=True), layout)
        mapped = attached.pages[child] = MappedPage(path, inode, reader)
    return mapped.reader


def _is_of_another_version(attached: Attached) -> bool:
    try:
        _reader(attached, "supervisor", SUPERVISOR_PAGE)
    except LayoutVersionError:
        return True
    except (OSError, SegmentError):
        return False
    return False


def _read_heartbeats(attached: Attached, children: list[str]) -> dict[str, Heartbeat]:
    """Return the line of each child: line 0 is the supervisor's, then they are in its order."""
    with suppress(SegmentError):
        if attached.heartbeats is None:
            segment = Segment.open(attached.directory.heartbeats, readonly=True)
            attached.heartbeats = Heartbeats(segment)
        lines = attached.heartbeats
        return {child: lines.read(1 + index) for index, child in enumerate(children)}
    return {}


def _read_directory(attached: Attached) -> DirectorySnapshot:
    with suppress(SegmentError):
        if attached.tenants is None:
            segment = Segment.open(attached.directory.directory, readonly=True)
            attached.tenants = DirectoryReader(segment)
        return attached.tenants.read()
    return DirectorySnapshot()
