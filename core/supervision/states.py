"""The states of a child as its supervisor sees them, and the one table of moves.

The value is what `SUPERVISOR_PAGE.children.state` shows. What a child says of itself (loading,
idle, busy until T) is its heartbeat, another thing: `core.supervision.watch`.

    STOPPED ─► STARTING ─► RUNNING ─► EXITED ─► BACKOFF ─► STARTING
                  │            └─► STOPPING ─► STOPPED      EXITED, BACKOFF ─► GIVEN_UP
                  └─► EXITED, STOPPING                      BACKOFF ─► STOPPED

    GIVEN_UP ─► STARTING, when an operator says so
"""

from enum import IntEnum


class ProcessState(IntEnum):
    """Where a child stands."""

    STOPPED = 0
    STARTING = 1
    RUNNING = 2
    STOPPING = 3
    EXITED = 4
    BACKOFF = 5
    GIVEN_UP = 6

    @property
    def has_process(self) -> bool:
        """True while a process of this child may exist."""
        return self in (ProcessState.STARTING, ProcessState.RUNNING, ProcessState.STOPPING)


_S = ProcessState

TRANSITIONS: dict[ProcessState, frozenset[ProcessState]] = {
    _S.STOPPED: frozenset({_S.STARTING}),
    _S.STARTING: frozenset({_S.RUNNING, _S.STOPPING, _S.EXITED}),
    _S.RUNNING: frozenset({_S.STOPPING, _S.EXITED}),
    _S.STOPPING: frozenset({_S.STOPPED}),
    _S.EXITED: frozenset({_S.BACKOFF, _S.GIVEN_UP}),
    _S.BACKOFF: frozenset({_S.STARTING, _S.STOPPED, _S.GIVEN_UP}),
    _S.GIVEN_UP: frozenset({_S.STARTING}),
}
