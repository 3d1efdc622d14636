"""Since when: what an operator types as `--since`, as a time.

Owns: the spellings. Never knows: what is asked for.
"""

import re
from datetime import UTC, datetime, timedelta

from ipc.control.declaration import ArgumentError

_BACK = re.compile(r"(\d{1,5})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def moment_of(command: str, since: str, now_s: float) -> float:
    """Return the time that `since` means, seconds since 1970: 30m, 12h or 7d back, or a date in UTC
    like 2026-11-30 or 2026-11-30T15; never before 1970. Raises ArgumentError.
    """
    back = _BACK.fullmatch(since)
    if back is not None:
        return max(0.0, now_s - timedelta(**{_UNITS[back[2]]: int(back[1])}).total_seconds())
    try:
        moment = datetime.fromisoformat(since)
    except ValueError:
        raise ArgumentError(
            f"{command}: since = {since!r} is none of 30m, 12h, 7d, 2026-11-30, 2026-11-30T15"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp())
