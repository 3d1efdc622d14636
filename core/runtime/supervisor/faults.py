"""Why a child that does not serve does not: one line each, for the page and the log.

Owns: the words. Never knows: what is done about a death. A child that ends because of a fault has
left its last words; one that was killed is described by who killed it, or by its end.
"""

import signal

from core.supervision.actions import EXIT_OK
from ipc.diagnostics import take_last_words
from ipc.run_directory import RunDirectory


class Faults:
    """What is known of each child's last death, by child id."""

    def __init__(self, directory: RunDirectory) -> None:
        """The children leave their words in `directory`."""
        self._directory = directory
        self._kills: dict[str, str] = {}  # of processes that have not ended yet: why
        self._texts: dict[str, str] = {}

    def killed(self, child_id: str, reason: str) -> None:
        """Note why a child is being killed."""
        self._kills.setdefault(child_id, reason)

    def ended(self, child_id: str, returncode: int) -> None:
        """Note the end of a child's process, by its own words if it has left any."""
        kill = self._kills.pop(child_id, "")
        words = take_last_words(self._directory.last_words(child_id))
        self._texts[child_id] = words or kill or describe(returncode)

    def not_started(self, child_id: str, reason: str) -> None:
        """Note that there has been no process at all."""
        self._texts[child_id] = f"cannot be started: {reason}"

    def given_up(self, child_id: str, reason: str) -> None:
        """Note that a child stays down, and why, where it has not said so itself."""
        if reason:
            self._texts[child_id] = f"{reason}; the last: {self.text(child_id)}"

    def text(self, child_id: str) -> str:
        """Return why the last instance of a child that has ended did; "" = none has."""
        return self._texts.get(child_id, "")


def describe(returncode: int) -> str:
    """Return how a process ended, in words."""
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return "has ended" if returncode == EXIT_OK else f"has ended with exit code {returncode}"
