"""The eventfd beside a ring."""

import os
import select
import subprocess
import sys

from ipc.doorbell import Doorbell

RING_IN_A_CHILD = "import sys; from ipc.doorbell import Doorbell; Doorbell(int(sys.argv[1])).ring()"


def is_readable(bell: Doorbell) -> bool:
    return bool(select.select([bell], [], [], 0)[0])


def test_rung_many_times_is_rung_once() -> None:
    """A bell is readable from the first ring until it is cleared, once."""
    bell = Doorbell.create()
    assert not is_readable(bell)
    bell.ring()
    bell.ring()
    assert is_readable(bell)
    assert bell.clear()
    assert not is_readable(bell)
    assert not bell.clear()
    bell.close()


def test_a_child_process_rings_its_parent() -> None:
    """The fd works across exec under its number."""
    bell = Doorbell.create()
    command = [sys.executable, "-c", RING_IN_A_CHILD, str(bell.fileno())]
    subprocess.run(command, pass_fds=[bell.fileno()], check=True)
    assert is_readable(bell)
    bell.close()


def test_a_bell_is_not_inherited_by_chance() -> None:
    """Only processes that are given a bell have it."""
    bell = Doorbell.create()
    assert not os.get_inheritable(bell.fileno())
    bell.close()
    bell.close()
