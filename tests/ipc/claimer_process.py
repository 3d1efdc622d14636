"""A process that claims a run directory when told to, says how that went, and waits for its end.

    python claimer_process.py NAME BASE

Every line on stdin is an order: `claim`, `exit` (leaving the directory as a crash would).
"""

import sys
from pathlib import Path

from ipc.errors import RunDirectoryBusyError
from ipc.run_directory import RunDirectory


def main(name: str, base: str) -> None:
    """Answer each order with one line on stdout."""
    say("ready")
    for order in sys.stdin:
        if order.strip() == "exit":
            return
        try:
            RunDirectory.claim(name, Path(base))
        except RunDirectoryBusyError as error:
            say(f"busy {error.pid}")
        else:
            say("claimed")


def say(answer: str) -> None:
    """Write one line at once."""
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
