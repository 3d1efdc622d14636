"""What a process has open, as the kernel tells it."""

from contextlib import suppress
from pathlib import Path


def open_files(pid: int) -> list[Path]:
    """Return what the file descriptors of a process name; one that is closed as we look is left
    out.
    """
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(link.readlink())
    return found
