"""What is said of a child that does not serve."""

import signal
from pathlib import Path

import pytest

from core.runtime.supervisor.faults import Faults
from ipc.diagnostics import MAX_WORDS_BYTES, leave_last_words, take_last_words
from ipc.run_directory import RunDirectory

CHILD = "executor.1.0"


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run directory."""
    return RunDirectory.claim("engine", tmp_path)


def test_a_child_has_the_last_word(directory: RunDirectory) -> None:
    """What it left counts more than its exit code, once."""
    faults = Faults(directory)
    leave_last_words(directory.last_words(CHILD), "model.safetensors is damaged")
    faults.ended(CHILD, 78)
    assert faults.text(CHILD) == "model.safetensors is damaged"
    faults.given_up(CHILD, "")
    assert faults.text(CHILD) == "model.safetensors is damaged"
    faults.ended(CHILD, 1)
    assert faults.text(CHILD) == "has ended with exit code 1"


def test_who_was_killed_is_described_by_who_killed_it(directory: RunDirectory) -> None:
    """The supervisor knows why it did; of others the signal tells."""
    faults = Faults(directory)
    faults.killed(CHILD, "hangs: loading for 5000 ms")
    faults.ended(CHILD, -signal.SIGKILL)
    assert faults.text(CHILD) == "hangs: loading for 5000 ms"
    faults.ended(CHILD, -signal.SIGKILL)
    assert faults.text(CHILD) == "was ended by SIGKILL"


def test_a_child_given_up_for_its_deaths_is_said_to_be_with_the_last_of_them(
    directory: RunDirectory,
) -> None:
    """How many, and how it ended."""
    faults = Faults(directory)
    faults.ended(CHILD, -signal.SIGKILL)
    faults.given_up(CHILD, "4 deaths within 60000 ms")
    assert faults.text(CHILD) == "4 deaths within 60000 ms; the last: was ended by SIGKILL"
    faults.not_started(CHILD, "no memory")
    assert faults.text(CHILD) == "cannot be started: no memory"


def test_of_a_child_that_has_not_ended_nothing_is_said(directory: RunDirectory) -> None:
    """Not even when others have."""
    faults = Faults(directory)
    faults.ended("scheduler", 1)
    assert faults.text(CHILD) == ""


def test_last_words_are_bounded_and_taken_once(tmp_path: Path) -> None:
    """However much is said."""
    path = tmp_path / "words"
    leave_last_words(path, "x" * 2 * MAX_WORDS_BYTES)
    assert len(take_last_words(path)) == MAX_WORDS_BYTES
    assert take_last_words(path) == ""
