"""Prompts that are partly computed, as the order of service sees them.

Owns: for each replica what is left of them and where they stand. Never knows: who waits, how fast
prompts are. They are few: `engine.max_num_partial_prefills` of a replica, and those that have one
token left.
"""

from collections.abc import Iterator
from typing import NamedTuple

from core.policy.base import Step
from core.policy.queues.flows import due_ns
from core.request import Request


class Begun(NamedTuple):
    """A prompt that is partly computed."""

    due_ns: int  # its place in the order
    num_tokens: int  # left
    request: Request


class UnderWay:
    """Those of all replicas that have planned a step."""

    def __init__(self) -> None:
        """Start without replicas."""
        self._begun: dict[int, list[Begun]] = {}

    def __iter__(self) -> Iterator[Begun]:
        """Go through all of them."""
        return (each for group in self._begun.values() for each in group)

    def __contains__(self, replica: int) -> bool:
        """Tell whether a replica is known."""
        return replica in self._begun

    def has_any(self) -> bool:
        """Tell whether there is any."""
        return any(self._begun.values())

    @property
    def replicas(self) -> list[int]:
        """Return who has planned a step."""
        return list(self._begun)

    def look_at(self, step: Step) -> None:
        """Take in what is left on the replica of `step`."""
        self._begun[step.replica] = [
            Begun(due_ns(each), left, each)
            for each in step.prefills()
            if (left := step.remaining(each))
        ]

    def lose(self, replica: int) -> None:
        """Forget a replica that is gone."""
        self._begun.pop(replica, None)

    def tokens_of(self, replica: int, until_ns: int) -> int:
        """Return the tokens on a replica that stand up to `until_ns` in the order."""
        return sum(each.num_tokens for each in self._begun[replica] if each.due_ns <= until_ns)

    def tokens_until(self, until_ns: int) -> int:
        """Return the tokens on all replicas that stand up to `until_ns` in the order."""
        return sum(each.num_tokens for each in self if each.due_ns <= until_ns)

    def of_flow(self, flow: int) -> list[Begun]:
        """Return those of a flow."""
        return [each for each in self if each.request.flow == flow]
