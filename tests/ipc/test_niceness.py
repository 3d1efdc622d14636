"""How far a process stands back: for those of its session, and as a session."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipc import niceness
from ipc.niceness import AUTOGROUP, stand_back

LOOK = """
import os
from ipc.niceness import AUTOGROUP, stand_back

print(stand_back(7), os.nice(0), AUTOGROUP.read_text().split()[-1])
"""


def look(*, is_leader: bool) -> list[bytes]:
    """Return what a process says that stands back by 7: whether its session does, and numbers."""
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(command, start_new_session=is_leader, capture_output=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel has no autogroups")
def test_a_process_and_the_session_that_it_leads_go_after_others() -> None:
    """Both are told the same number; the session of a shell is left alone."""
    later = str(min(os.nice(0) + 7, 19)).encode()  # we may stand back ourselves
    assert look(is_leader=True) == [b"True", later, b"7"]
    is_told, own, session = look(is_leader=False)
    assert (is_told, own) == (b"False", later)
    assert session == AUTOGROUP.read_bytes().split()[-1]


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lead a session, and return what `os.nice` is told."""
    told: list[int] = []
    monkeypatch.setattr(os, "getsid", lambda _pid: os.getpid())
    monkeypatch.setattr(os, "nice", told.append)
    return told


def test_a_kernel_without_autogroups_is_enough(tmp_path: Path, leader: list[int]) -> None:
    """The process stands back all the same, and it is said that the session does not."""
    assert stand_back(5, tmp_path / "proc" / "autogroup") is False
    assert leader == [5]


@pytest.mark.usefixtures("leader")
@pytest.mark.parametrize(("refusals", "is_told"), [(2, True), (1000, False)])
def test_a_kernel_that_says_later_is_asked_again(
    refusals: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bounded number of times."""
    left = [BlockingIOError()] * refusals
    waits: list[float] = []

    def write_text(_path: Path, _text: str, encoding: str) -> None:
        if left:
            raise left.pop()

    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(Path, "write_text", write_text)
    assert stand_back(5, tmp_path / "autogroup") is is_told
    assert len(waits) == min(refusals, niceness.ATTEMPTS)
