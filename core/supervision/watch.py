"""Is a child alive? A decision on its last heartbeat, with one limit per kind of silence.

Owns: the verdict. Never knows: where heartbeats lie or what is done to a hung child. A loop stamps
its own heartbeat, so silence means that the loop is stuck, unless it has said before that it will
be: loading, compiling, or busy until T.
"""

from dataclasses import dataclass
from enum import IntEnum


class Activity(IntEnum):
    """What a child says of itself: the values of `ipc.heartbeat.HeartbeatState`."""

    OFF = 0
    STARTING = 1
    LOADING = 2
    COMPILING = 3
    IDLE = 4
    BUSY = 5
    DRAINING = 6

    @property
    def is_serving(self) -> bool:
        """True once the child has taken up its work."""
        return self >= Activity.IDLE


@dataclass(frozen=True, slots=True)
class Beat:
    """The heartbeat line of a child; `until_ns` is the promised end of BUSY."""

    epoch: int
    activity: Activity
    stamp_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """How long each silence may last, ns."""

    hang_ns: int
    load_ns: int


def silence_limit_ns(beat: Beat, limits: WatchLimits, started_ns: int) -> int:
    """Return the moment at which the child counts as hung unless it stamps again, CLOCK_MONOTONIC
    ns.

    Until it serves, the whole start has one limit. BUSY until T is believed up to T and a hang
    limit: an executor in a step says T = start of the step + step timeout, so a step that overruns
    is over at T already.
    """
    if not beat.activity.is_serving:
        return started_ns + limits.load_ns
    if beat.activity is Activity.BUSY and beat.until_ns:
        return beat.until_ns
    return beat.stamp_ns + limits.hang_ns


def is_hung(beat: Beat, limits: WatchLimits, started_ns: int, now_ns: int) -> bool:
    """Return whether the instance started at `started_ns` has been silent for too long."""
    return now_ns > silence_limit_ns(beat, limits, started_ns)
