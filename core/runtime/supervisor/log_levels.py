"""`log-level`: what all processes write to stderr from now on, until the engine ends.

Owns: the level that is wanted, in the supervisor's own heartbeat line. Never knows: when the others
go by it: each looks at every stamp of its own line, and says there which level it has.
"""

import logging

from core.runtime.supervisor.tenants import Record
from ipc.heartbeat import HeartbeatLine


class LogLevels:
    """Sets the level of the supervisor, and of all who look at its `line`."""

    def __init__(self, line: HeartbeatLine) -> None:
        self._line = line
        line.set_log_level(logging.getLogger().getEffectiveLevel())

    def set(self, level: str) -> Record:
        """Go by `level`, a name that `logging` knows; return the answer."""
        before = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        logging.getLogger().setLevel(level)
        self._line.set_log_level(logging.getLevelNamesMapping()[level])
        return {"log_level": level, "before": before}
