"""A small honest child: it takes up its setup, serves, and answers one line for each thing it sees.

    python child_process.py SETUP_FD

It stops at SIGTERM ("stopping") or when its parent's end of the pipe "death" is gone ("orphaned").
"""

import logging
import select
import sys
import time

from ipc.child import Child
from ipc.heartbeat import HeartbeatState

LOOK_EVERY_S = 0.1


def main(argv: list[str]) -> None:
    """Serve until stopped."""
    child = Child.attach(argv)
    child.stamp(HeartbeatState.IDLE, time.monotonic_ns())
    child.serving()
    logging.info("serving under epoch %d", child.epoch)
    say(f"serving {child.child_id} {child.peer_epoch(child.child_id)}")
    ends = [child.stop_doorbell.fileno(), child.fd("death")]
    while not select.select(ends, [], [], LOOK_EVERY_S)[0]:
        continue  # a signal that comes just before the wait is handled after it
    child.stamp(HeartbeatState.DRAINING, time.monotonic_ns())
    say("orphaned" if child.parent_is_gone() else f"stopping {child.stop_requested}")


def say(answer: str) -> None:
    """Write one line at once."""
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv)
