"""`python -P -m frontends.admin FD`: one worker of the admin pool, started by the supervisor."""

import sys

from core.clock import MonotonicClock
from frontends.admin.pool import run_worker
from ipc.child import Child

if __name__ == "__main__":
    run_worker(Child.attach(sys.argv), MonotonicClock())
