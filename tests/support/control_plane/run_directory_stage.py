"""An engine's run directory with pages and heartbeats in it, written by hand: no process runs."""

from pathlib import Path
from typing import Any

import numpy as np

from ipc.board import BoardWriter, board_layout
from ipc.directory import DirectoryClass, DirectorySnapshot, DirectoryWriter, directory_layout
from ipc.heartbeat import HEARTBEATS_LAYOUT, HeartbeatLine, HeartbeatState
from ipc.layout import create_segment
from ipc.pages import (
    EXECUTOR_PAGE,
    HTTP_PAGE,
    SCHEDULER_PAGE,
    SUPERVISOR_PAGE,
)
from ipc.run_directory import RunDirectory
from tests.support.control_plane.boards import fill

CHILDREN = ("janitor", "executor.0.0", "scheduler", "http.0")
PAGES = {
    "supervisor": SUPERVISOR_PAGE,
    "executor.0.0": EXECUTOR_PAGE,
    "scheduler": SCHEDULER_PAGE,
    "http.0": HTTP_PAGE,
}


class EngineOnPaper:
    """What a running engine called `name` shows, as far as it was written."""

    def __init__(self, base: Path, name: str, now_ns: int) -> None:
        """Claim the name, with a page of zeros for each process and beating hearts."""
        self.directory = RunDirectory.claim(name, base)
        self._writers = {child: self._writer(child, dtype) for child, dtype in PAGES.items()}
        beats = create_segment(self.directory.heartbeats, HEARTBEATS_LAYOUT)
        self._lines = {c: HeartbeatLine(beats, 1 + k) for k, c in enumerate(CHILDREN)}
        segment = create_segment(self.directory.directory, directory_layout())
        self._tenants = DirectoryWriter(segment)
        rows = [{"name": child.encode(), "pid": 7, "epoch": 1, "state": 2} for child in CHILDREN]
        started = {"num_children": len(rows), "children": rows, "started_ns": now_ns}
        self.publish(now_ns, "supervisor", **started)
        self.publish(now_ns, "executor.0.0", model=b"paper-1b", threads=2)
        self.publish(now_ns, "http.0")
        self.beat(now_ns)

    def publish(self, now_ns: int, child: str, **fields: Any) -> None:
        """Set some fields of a page and show it."""
        fill(self._writers[child].page, fields)
        self._writers[child].publish(now_ns)

    def replace_page(self, now_ns: int, child: str, **fields: Any) -> None:
        """Put another file in the place of a page."""
        self.directory.board(child).unlink()
        self._writers[child] = self._writer(child, PAGES[child])
        self.publish(now_ns, child, **fields)

    def beat(self, now_ns: int, *children: str) -> None:
        """Stamp the lines of these children, or of all."""
        for child in children or CHILDREN:
            self._lines[child].stamp(HeartbeatState.IDLE, now_ns)

    def beat_busy(self, child: str, now_ns: int, until_ns: int) -> None:
        """Stamp the line of a child that will be silent for a while."""
        self._lines[child].stamp(HeartbeatState.BUSY, now_ns, until_ns)

    def promise(self, name: str, **promises: Any) -> None:
        """Publish a class with these promises."""
        self._tenants.publish(DirectorySnapshot(classes=(DirectoryClass(name=name, **promises),)))

    def _writer(self, child: str, dtype: np.dtype[Any]) -> BoardWriter:
        segment = create_segment(self.directory.board(child), board_layout(dtype))
        return BoardWriter(segment, dtype, epoch=1)
