"""`python -P -m frontends.admin FD`: one worker of the admin pool, started by its supervisor."""

import sys

from core.monotonic_clock import MonotonicClock
from frontends.admin.listener import ADMIN_LIMITS
from frontends.admin.pool import run_worker
from frontends.fd_limit import raise_fd_limit
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
    raise_fd_limit(2 * ADMIN_LIMITS.max_connections)  # half of them only to be told no
    run_worker(child, MonotonicClock())
    return 0


if __name__ == "__main__":
    sys.exit(main())
