"""`python -P -m frontends.cli.bound_engine PARENT_PID …`: an engine that dies with the process that
wants it.

The wish to die with the parent survives the exec into the supervisor, whose janitor then cleans up;
so even a killed `headrace generate` leaves nothing behind.
"""

import os
import sys

from frontends.cli.verbs import ENGINE_MODULE
from ipc.child import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, "-P", "-m", ENGINE_MODULE, *sys.argv[2:]])
