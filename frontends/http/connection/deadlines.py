"""The waits of one connection: for what its client has still to send, and for what it has to take.

Owns: timers. Never knows: what is late, or what is done about it. Nobody is late by a stall of our
own loop: what has come in the meantime is read first.
"""

from collections.abc import Callable
from typing import Protocol

READ_FIRST_S = 0.001  # uvloop calls timers before it reads: one more round reads what has come


class Timer(Protocol):
    """What a loop has been asked to call."""

    def cancel(self) -> None:
        """Call nothing."""
        ...


class Timers(Protocol):
    """What is needed of a loop."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Call `callback` once after `delay` seconds."""
        ...


class Deadline:
    """One wait at a time: a new one takes the place of the one before."""

    __slots__ = ("_loop", "_timer")

    def __init__(self, loop: Timers) -> None:
        self._loop = loop
        self._timer: Timer | None = None

    def set(self, timeout_s: float, on_timeout: Callable[[], None]) -> None:
        """Call `on_timeout` once after `timeout_s`, unless stopped or set anew."""
        self.stop()
        self._timer = self._loop.call_later(timeout_s, on_timeout)

    def set_after_reading(self, timeout_s: float, on_timeout: Callable[[], None]) -> None:
        """The same, for something that is to arrive: what is there by then has been read."""
        self.set(timeout_s, lambda: self.set(READ_FIRST_S, on_timeout))

    def stop(self) -> None:
        """Wait for nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ReaderWatch:
    """Whether a client whose buffer is full takes anything: looked at every `timeout_s`."""

    __slots__ = ("_deadline", "_num_unsent", "_on_stuck", "_timeout_s", "_unsent_bytes")

    def __init__(
        self,
        loop: Timers,
        timeout_s: float,
        unsent_bytes: Callable[[], int],
        on_stuck: Callable[[], None],
    ) -> None:
        """Watch `unsent_bytes`, which must fall; `on_stuck` is called once if it does not."""
        self._deadline = Deadline(loop)
        self._timeout_s = timeout_s
        self._unsent_bytes = unsent_bytes
        self._on_stuck = on_stuck
        self._num_unsent = 0

    def start(self) -> None:
        """Begin to watch."""
        self._num_unsent = self._unsent_bytes()
        self._deadline.set(self._timeout_s, self._look)

    def stop(self) -> None:
        """The client has caught up, or is gone."""
        self._deadline.stop()

    def _look(self) -> None:
        if self._unsent_bytes() < self._num_unsent:
            self.start()
        else:
            self._on_stuck()
