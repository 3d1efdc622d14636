"""The runner of every process loop: work while there is work, then sleep until a doorbell, a
message or a timer.

Owns: waiting, and the heartbeat. Never knows: what the work is. The loop itself stamps the
heartbeat, between two pieces of work and at least every `heartbeat_ns`, so a loop that is stuck
falls silent and its supervisor notices. A fault in our own code leaves through here and ends the
process; the supervisor starts another one.
"""

import gc
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import zmq

from core.clock import NS_PER_MS, Clock
from ipc.heartbeat import HeartbeatState

ChannelsT_contra = TypeVar("ChannelsT_contra", contravariant=True)


class Stamp(Protocol):
    """The loop's own heartbeat (`ipc.child.Child.stamp`)."""

    def __call__(self, state: HeartbeatState, now_ns: int, busy_until_ns: int = 0) -> None:
        """Say that the loop runs, and until when it expects to be silent."""
        ...


class ProcessLoop(Protocol[ChannelsT_contra]):
    """What a process does, in pieces short enough to be interrupted between two of them."""

    def step(self, channels: ChannelsT_contra, clock: Clock) -> bool:
        """Do what can be done now without waiting; False = there was nothing to do."""
        ...

    def next_timer_ns(self) -> int | None:
        """Return when `step` has something to do even if nothing arrives; None = never."""
        ...

    def state(self) -> HeartbeatState:
        """Return what the heartbeat says between two steps."""
        ...

    def close(self, channels: ChannelsT_contra, clock: Clock) -> None:
        """Show what was counted last: the process ends."""
        ...


class Wakeups:
    """All that may end the sleep of a loop: zmq sockets, and fds such as doorbells."""

    def __init__(self, sources: Sequence[Any]) -> None:
        """Watch `sources`: zmq sockets, or objects with `fileno()`, for something to read."""
        self._poller = zmq.Poller()
        for source in sources:
            self._poller.register(source, zmq.POLLIN)

    def wait(self, timeout_ns: int) -> None:
        """Return when a source has something to read, or after `timeout_ns` rounded up to 1 ms."""
        self._poller.poll(-(-timeout_ns // NS_PER_MS))


def run_loop(
    loop: ProcessLoop[ChannelsT_contra],
    channels: ChannelsT_contra,
    *,
    clock: Clock,
    stamp: Stamp,
    wakeups: Wakeups,
    heartbeat_ns: int,
    is_stopping: Callable[[], bool],
) -> None:
    """Run `loop` until `is_stopping`.

    Objects made so far are taken out of the garbage collector's sight: they live as long as the
    process, and walking them would cost milliseconds within a step.
    """
    gc.collect()
    gc.freeze()
    while not is_stopping():
        stamp(loop.state(), clock.now_ns())
        if not loop.step(channels, clock):
            wakeups.wait(sleep_ns(loop.next_timer_ns(), clock.now_ns(), heartbeat_ns))
    loop.close(channels, clock)


def sleep_ns(timer_ns: int | None, now_ns: int, heartbeat_ns: int) -> int:
    """Return how long the loop may sleep: until its timer, and no longer than a heartbeat."""
    if timer_ns is None:
        return heartbeat_ns
    return min(max(timer_ns - now_ns, 0), heartbeat_ns)
