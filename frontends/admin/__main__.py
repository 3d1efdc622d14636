"""`python -P -m frontends.admin FD`: one worker of the admin pool, started by its supervisor."""

import sys

from core.monotonic_clock import MonotonicClock
from frontends.admin.pool import run_worker
from ipc.child import Child
from ipc.errors import IpcError

EXIT_SETUP = 2


def main() -> int:
    """Run one worker; return its exit code."""
    try:
        child = Child.attach(sys.argv)
    except IpcError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_SETUP
    run_worker(child, MonotonicClock())
    return 0


if __name__ == "__main__":
    sys.exit(main())
