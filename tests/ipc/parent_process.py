"""A parent that starts one `child_process`, tells its pid, and waits to be killed.

    python parent_process.py RUN_DIRECTORY HOLD_PIPE_FD

The write end of the child's pipe "death" is HOLD_PIPE_FD, which outlives this process in the test,
so that only the kernel can have ended the child.
"""

import os
import subprocess
import sys

from ipc.child import ChildSetup, inherited_fds, write_setup
from tests.ipc import child_process


def main(run_dir: str, death_fd: str) -> None:
    """Start the child and wait for ever."""
    setup = ChildSetup(
        child_id="http.0",
        epoch=1,
        slot=0,
        run_dir=run_dir,
        parent_pid=os.getpid(),
        peers={"http.0": 0},
        fds={"death": int(death_fd)},
    )
    fd = write_setup(setup)
    child = subprocess.Popen(
        [sys.executable, "-P", child_process.__file__, str(fd)], pass_fds=inherited_fds(setup, fd)
    )
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    child.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
