"""What the dashboard itself saw happen: processes that died, an engine that fell silent.

Owns: the last of these events, in the form in which the engine tells its own. Never knows: screens.
"""

from collections import deque

from dashboard.frame import Frame
from dashboard.source.base import Record

MAX_ENTRIES = 500


class Journal:
    """Events of this dashboard, numbered from 0; there have been `count`."""

    def __init__(self) -> None:
        """Begin empty."""
        self._entries: deque[Record] = deque(maxlen=MAX_ENTRIES)
        self.count = 0
        self._last: Frame | None = None

    def look(self, frame: Frame) -> None:
        """Note what changed since the last frame."""
        last, self._last = self._last, frame
        if last is None or frame.taken_s < last.taken_s:
            return
        if frame.liveness is not last.liveness:
            self.note("engine", f"is {frame.liveness}", frame.wall_s)
        epochs = {process.child: process.epoch for process in last.processes}
        for process in frame.processes:
            if process.epoch > epochs.get(process.child, process.epoch):
                text = f"{process.child} epoch {process.epoch}"
                self.note("restart", text, frame.wall_s, measured=process.restarts)

    def note(self, kind: str, reason: str, wall_s: float, measured: float = 0.0) -> None:
        """Add an entry."""
        self._entries.append(
            {
                "origin": "here",
                "number": self.count,
                "at_s": wall_s,
                "kind": kind,
                "reason": reason,
                "measured": measured,
            }
        )
        self.count += 1

    def entries(self) -> list[Record]:
        """Return the entries, oldest first."""
        return list(self._entries)
