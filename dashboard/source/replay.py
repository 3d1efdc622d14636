"""Frames of a recording, at the pace at which they were taken; one may stop it and move about.

Owns: the place in the recording. Never knows: what is in a frame.
"""

from collections.abc import Callable, Mapping

from dashboard.frame import Frame
from dashboard.history import MAX_SAMPLES, QUANTILE_WINDOW_S
from dashboard.recording import Recording
from dashboard.source.base import ControlError, Record

PRELOAD_S = 120.0


class ReplaySource:
    """A recording on a clock of its own: `position_s` since its first frame."""

    takes_commands = False

    def __init__(self, recording: Recording, monotonic_s: Callable[[], float]) -> None:
        """Start at the beginning."""
        self._recording = recording
        self._monotonic_s = monotonic_s
        self._read_at_s = monotonic_s()
        self.title = recording.path.name
        self.position_s = 0.0
        self.is_playing = True

    @property
    def length_s(self) -> float:
        """How long the recording is."""
        last = len(self._recording) - 1
        return self._recording.time_s(last) - self._recording.time_s(0)

    def read(self) -> Frame:
        """Return the frame at this place, going on as time does."""
        now_s = self._monotonic_s()
        if self.is_playing:
            self.position_s = min(self.length_s, self.position_s + now_s - self._read_at_s)
        self._read_at_s = now_s
        return self._recording.frame(self._index())

    def seek(self, position_s: float) -> list[Frame]:
        """Move; return the frames before the new place, from which rates and trends follow."""
        self.position_s = min(self.length_s, max(0.0, position_s))
        last = self._index()
        first = self._recording.at(self._recording.time_s(last) - PRELOAD_S)
        step = max(1, (last - first) // MAX_SAMPLES)
        dense = self._recording.at(self._recording.time_s(last) - QUANTILE_WINDOW_S)
        chosen = [*range(first, dense, step), *range(max(first, dense), last)]
        return [self._recording.frame(index) for index in chosen]

    def call(self, command: str, args: Mapping[str, object]) -> Record:
        """Refuse: what was recorded cannot be changed, or asked."""
        raise ControlError(f"{command}: this is a recording, there is no engine to ask")

    def _index(self) -> int:
        return self._recording.at(self._recording.time_s(0) + self.position_s)
