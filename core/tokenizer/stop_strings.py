"""Stop strings in a growing text, in linear time.

Owns: the automata of up to four strings and the text that may still turn out to begin one. Never
knows: tokens; the caller pushes the text of one token at a time and so learns which one ended it.

Each string has its failure table (Knuth, Morris and Pratt 1977): the state is the length of the
longest prefix that the text ends with. A match is a full state; text is held back for as long as
the longest state, so nothing that could belong to a stop string is ever out too early.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The text before (with `include`, up to the end of) the stop string that ended it."""

    text: str
    stop: str


class StopFilter:
    """One choice's text on its way out."""

    __slots__ = ("_failures", "_first_characters", "_held", "_includes", "_states", "_stops")

    def __init__(self, stops: Sequence[str], include_stop_str: bool) -> None:
        """Search for `stops`, none empty; the first to be complete wins, of several the longest."""
        assert all(stops), stops
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._failures = [failure_table(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._held = ""
        self._includes = include_stop_str

    def push(self, text: str, may_stop: bool) -> str | StopMatch:
        """Return the text that may go out now, or the match that ends it.

        While `may_stop` is False (`min_tokens`), a stop string that completes is ordinary text.
        """
        if not self._held and self._first_characters.isdisjoint(text):
            return text
        held = self._held + text
        for position, character in enumerate(text, len(self._held) + 1):
            stop = self._advance(character)
            if stop and may_stop:
                self._held = ""
                return StopMatch(held[: position if self._includes else position - len(stop)], stop)
        keep = max(self._states)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """Return what was held back; the text ended before any stop string was complete."""
        held, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return held

    def _advance(self, character: str) -> str:
        """Move every automaton by one character; return the longest string that is complete."""
        found = ""
        for index, stop in enumerate(self._stops):
            state = self._states[index]
            failure = self._failures[index]
            while state and stop[state] != character:
                state = failure[state]
            if stop[state] == character:
                state += 1
            self._states[index] = state
            if state == len(stop):
                found = found or stop
                self._states[index] = failure[state]
        return found


def failure_table(stop: str) -> list[int]:
    """Return for each length the longest proper prefix that is also a suffix, [0..len(stop)]."""
    table = [0] * (len(stop) + 1)
    state = 0
    for length in range(2, len(stop) + 1):
        while state and stop[state] != stop[length - 1]:
            state = table[state]
        if stop[state] == stop[length - 1]:
            state += 1
        table[length] = state
    return table
