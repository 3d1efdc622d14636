"""Who runs an engine: a process told apart from all others that ever had its pid.

Owns: what is read from /proc. Never knows: files of an engine (`ipc.run_directory`).
"""

from pathlib import Path

import msgspec


class Owner(msgspec.Struct, frozen=True):
    """Who runs an engine: a process told apart from all others that ever had its pid."""

    pid: int
    start_ticks: int  # clock ticks since boot, from /proc/PID/stat
    boot_id: str


def owner_of(pid: int) -> Owner | None:
    """Return the identity of a running process, or None if there is no such pid."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = line.rpartition(")")[2].split()  # the name may hold blanks and brackets
    if after_name[0] in "ZX":
        return None
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return Owner(pid, int(after_name[19]), boot_id)


def is_alive(owner: Owner) -> bool:
    """Return whether exactly this process still runs."""
    return owner_of(owner.pid) == owner
