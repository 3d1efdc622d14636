"""Reads all pages and heartbeats of the engine this process belongs to: shared memory → `Boards`.

Owns: the mapped segments. Never knows: what the fields mean. A page that is not there yet, or is
not what it should be, is left out and looked for again at the next read; a file that was replaced
is mapped again.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.clock import Clock
from frontends.boards import LAYOUTS, Boards, Page, kind_of
from ipc.board import BoardReader
from ipc.errors import SegmentError
from ipc.heartbeat import Heartbeat, Heartbeats
from ipc.run_directory import RunDirectory
from ipc.segment import Segment


@dataclass(frozen=True, slots=True)
class MappedPage:
    """A reader and the file it reads."""

    inode: int
    reader: BoardReader


class BoardSource:
    """All pages of one engine; reading never waits for anybody."""

    def __init__(self, directory: RunDirectory, slots: Mapping[str, int], clock: Clock) -> None:
        """Read the engine in `directory`; `slots` has the heartbeat slot of each child id."""
        self._directory = directory
        self._slots = dict(slots)
        children = (c for c in sorted({"supervisor", *slots}) if kind_of(c) in LAYOUTS)
        self._paths = {child: str(directory.board(child)) for child in children}
        self._clock = clock
        self._mapped: dict[str, MappedPage] = {}
        self._heartbeats: Heartbeats | None = None

    def read(self) -> Boards:
        """Return everything as it is now."""
        pages: dict[str, Page] = {}
        for child, path in self._paths.items():
            page = self._read_page(child, path)
            if page is not None:
                pages[child] = page
        heartbeats = self._read_heartbeats()
        return Boards(self._clock.now_ns(), pages, heartbeats)

    def _read_page(self, child: str, path: str) -> Page | None:
        with suppress(OSError, SegmentError):
            snapshot = self._reader(child, path).read()
            if snapshot.stamp_ns:
                record: np.void = snapshot.page.reshape(1)[0]
                return Page(snapshot.epoch, snapshot.stamp_ns, record)
        return None

    def _reader(self, child: str, path: str) -> BoardReader:
        inode = os.stat(path).st_ino
        mapped = self._mapped.get(child)
        if mapped is None or mapped.inode != inode:
            segment = Segment.open(Path(path), readonly=True)
            mapped = MappedPage(inode, BoardReader(segment, LAYOUTS[kind_of(child)]))
            self._mapped[child] = mapped
        return mapped.reader

    def _read_heartbeats(self) -> dict[str, Heartbeat]:
        if self._heartbeats is None:
            with suppress(SegmentError):
                segment = Segment.open(self._directory.heartbeats, readonly=True)
                self._heartbeats = Heartbeats(segment)
        lines = self._heartbeats
        return {} if lines is None else {c: lines.read(slot) for c, slot in self._slots.items()}
