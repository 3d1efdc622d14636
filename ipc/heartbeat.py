"""Who lives, in which state, and who serves: one cache line per child.

Owns: the file `heartbeats` (HEARTBEATS_LAYOUT). Never knows: how long is too long
(`core.supervision`). A line is written only by the loop it speaks for, never by a helper thread, so
a hung loop falls silent.

    line of slot s, at 64 + 64 * s, eight u64:
    0 epoch          of the instance that serves, set once it is ready; peers resynchronize on it
    1 state          HeartbeatState
    2 busy_until_ns  until when silence is expected (BUSY, COMPILING, LOADING); 0 = no promise
    3 stamp_ns       CLOCK_MONOTONIC of the loop's last step, written last
    4 directory      version of the tenant directory that the loop goes by; 0 = none yet
    5 log level      by which the process goes, as `logging` numbers it; in the supervisor's line:
                     by which all shall go; 0 = as started
    6..7             zero

Every word is stored at once but the line is not: a reader may see the state of one stamp beside the
time of the one before, which the next look corrects.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ipc.layout import ArraySpec, Layout
from ipc.segment import Segment

NUM_SLOTS = 64
_EPOCH, _STATE, _BUSY_UNTIL, _STAMP, _DIRECTORY, _LOG_LEVEL = range(6)
HEARTBEATS_LAYOUT = Layout(
    "heartbeats", 3, {"lines": ArraySpec(np.dtype(np.uint64), (NUM_SLOTS, 8))}
)


class HeartbeatState(IntEnum):
    """What a loop says of itself; OFF until its first stamp."""

    OFF = 0
    STARTING = 1
    LOADING = 2
    COMPILING = 3
    IDLE = 4
    BUSY = 5
    DRAINING = 6


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One line as it was read; times are CLOCK_MONOTONIC ns."""

    epoch: int
    state: HeartbeatState
    stamp_ns: int
    busy_until_ns: int
    directory_version: int = 0
    log_level: int = 0


class HeartbeatLine:
    """The writing end of one slot."""

    __slots__ = ("_words",)

    def __init__(self, segment: Segment, slot: int) -> None:
        self._words = HEARTBEATS_LAYOUT.views(segment)["lines"][slot].data

    def stamp(self, state: HeartbeatState, now_ns: int, busy_until_ns: int = 0) -> None:
        """Say that the loop runs."""
        self._words[_STATE] = state
        self._words[_BUSY_UNTIL] = busy_until_ns
        self._words[_STAMP] = now_ns

    def serve(self, epoch: int) -> None:
        """Say that this instance is ready; peers that see a new epoch resynchronize."""
        self._words[_EPOCH] = epoch

    def go_by(self, directory_version: int) -> None:
        """Say which version of the tenant directory is in force here."""
        self._words[_DIRECTORY] = directory_version

    def set_log_level(self, level: int) -> None:
        """Say by which log level this process goes."""
        self._words[_LOG_LEVEL] = level


class Heartbeats:
    """The reading end of all slots."""

    __slots__ = ("_words",)

    def __init__(self, segment: Segment) -> None:
        self._words = HEARTBEATS_LAYOUT.views(segment)["lines"].reshape(-1).data

    def read(self, slot: int) -> Heartbeat:
        """Return the line of `slot`."""
        words = self._words[slot * 8 : slot * 8 + 6]
        epoch, state, busy_until_ns, stamp_ns, directory_version, log_level = words
        return Heartbeat(
            epoch, HeartbeatState(state), stamp_ns, busy_until_ns, directory_version, log_level
        )

    def epoch(self, slot: int) -> int:
        """Return the serving epoch of `slot` alone: one word, for loops that look at every step."""
        return self._words[slot * 8 + _EPOCH]

    def log_level(self, slot: int) -> int:
        """Return the log level of `slot` alone: one word, for loops that look at every stamp."""
        return self._words[slot * 8 + _LOG_LEVEL]
