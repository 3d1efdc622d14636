"""Who has taken over what was changed: each process says it in its heartbeat line. Pure.

Owns: who must go by a new version of the tenant directory or by a new log level, and who is silent.
Never knows: how long to wait for them (`frontends.admin.commands.handlers`).
"""

import logging
from collections.abc import Mapping

from frontends.boards import Boards, kind_of

DIRECTORY_READERS = ("scheduler", "tokenizer", "http")
KEEPER = "admin.0"  # whose directory version is the one on disk

Record = dict[str, object]


def silence_s(boards: Boards, child: str) -> float:
    """Return for how long a process has not stamped its heartbeat; 0 if it never has."""
    beat = boards.heartbeats.get(child)
    return boards.age_s(beat.stamp_ns) if beat is not None and beat.stamp_ns else 0.0


def is_taken_over(result: Mapping[str, object]) -> bool:
    """Tell whether a change is one that each process takes over in its own time."""
    return "version" in result or "log_level" in result


def progress(boards: Boards, result: Mapping[str, object]) -> tuple[Record, bool]:
    """Return who does not go by a change yet and whether it is on disk if it belongs there; and
    whether there is nothing to wait for. A keeper that has kept nothing so far keeps nothing.
    """
    if "log_level" in result:
        late = at_other_level(boards, logging.getLevelNamesMapping()[str(result["log_level"])])
        return {"in_force": not late, "waiting_for": late}, not late
    version = int(str(result["version"]))
    late, keeper = behind(boards, version), boards.heartbeats.get(KEEPER)
    kept_version = keeper.directory_version if keeper is not None else 0
    is_kept = kept_version >= version
    answer: Record = {"in_force": not late, "waiting_for": late, "kept": is_kept}
    return answer, not late and (is_kept or not kept_version)


def behind(boards: Boards, version: int) -> list[str]:
    """Return which living processes that read the tenant directory go by an older version; one that
    is only starting reads the newest before it serves.
    """
    return [
        child
        for child, beat in sorted(boards.heartbeats.items())
        if kind_of(child) in DIRECTORY_READERS and beat.epoch and beat.directory_version < version
    ]


def at_other_level(boards: Boards, level: int) -> list[str]:
    """Return which living processes log by another level; the janitor only waits and logs not."""
    return [
        child
        for child, beat in sorted(boards.heartbeats.items())
        if beat.epoch and kind_of(child) != "janitor" and beat.log_level != level
    ]
