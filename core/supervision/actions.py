"""What the supervision tree has done to a child, and the exit codes that speak of it.

Owns: the words between the tree, which decides, and the supervisor's loop, which acts. Never knows:
why.
"""

from dataclasses import dataclass

EXIT_OK = 0
EXIT_CANNOT_START = 1
EXIT_GIVEN_UP = 70  # EX_SOFTWARE
EXIT_LOST_RANK = 75  # EX_TEMPFAIL: another rank of its group is gone or late
EXIT_UNUSABLE = 78  # EX_CONFIG: a child says that no restart will help


@dataclass(frozen=True, slots=True)
class Start:
    """Start an instance of the child; the page shows its epoch before the process exists."""

    child_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the process of the child to end (SIGTERM)."""

    child_id: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process of the child (SIGKILL); `reason` is for the log."""

    child_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The child stays down; `reason` "" = it has said so itself. Either the engine ends, or it goes
    on with the other replicas.
    """

    child_id: str
    reason: str
    ends_engine: bool = True


Action = Start | Terminate | Kill | GiveUp
