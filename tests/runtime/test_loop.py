"""The runner of process loops: when it works, when it sleeps, what its heartbeat says."""

import pytest

from core.clock import Clock
from core.runtime.loop import Wakeups, run_loop, sleep_ns
from core.simulation.virtual_clock import VirtualClock
from ipc.doorbell import Doorbell
from ipc.heartbeat import HeartbeatState

HEARTBEAT_NS = 100


class RecordedWakeups(Wakeups):
    """Sleeps in virtual time and remembers for how long."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__([])
        self.clock = clock
        self.slept_ns: list[int] = []

    def wait(self, timeout_ns: int) -> None:
        """Let the time pass."""
        self.slept_ns.append(timeout_ns)
        self.clock.advance(timeout_ns)


class CountedLoop:
    """Has something to do in its first `num_busy` steps; its timer is always 30 ns away."""

    def __init__(self, num_busy: int) -> None:
        self.num_busy = num_busy
        self.num_steps = 0
        self.now_ns = 0
        self.is_closed = False

    def step(self, channels: str, clock: Clock) -> bool:
        """Count."""
        assert channels == "channels"
        self.num_steps += 1
        self.now_ns = clock.now_ns()
        return self.num_steps <= self.num_busy

    def next_timer_ns(self) -> int | None:
        """Soon."""
        return self.now_ns + 30

    def state(self) -> HeartbeatState:
        """Draining, so that the test can tell who said it."""
        return HeartbeatState.DRAINING

    def close(self, channels: str, clock: Clock) -> None:
        """Be asked once, after the last step."""
        assert not self.is_closed
        self.is_closed = True


def run(num_busy: int, num_steps: int) -> tuple[RecordedWakeups, list[HeartbeatState]]:
    """Run a loop for `num_steps` steps."""
    clock, loop = VirtualClock(), CountedLoop(num_busy)
    wakeups, stamps = RecordedWakeups(clock), []

    def stamp(state: HeartbeatState, now_ns: int, busy_until_ns: int = 0) -> None:
        stamps.append(state)

    run_loop(
        loop,
        "channels",
        clock=clock,
        stamp=stamp,
        wakeups=wakeups,
        heartbeat_ns=HEARTBEAT_NS,
        is_stopping=lambda: loop.num_steps >= num_steps,
    )
    assert loop.is_closed
    return wakeups, stamps


def test_a_loop_with_work_does_not_sleep() -> None:
    """It sleeps only after a step that found nothing, until its timer."""
    wakeups, _ = run(num_busy=3, num_steps=5)
    assert wakeups.slept_ns == [30, 30]


def test_every_step_is_stamped_with_the_state_of_the_loop() -> None:
    """The heartbeat comes from the loop itself, work or not."""
    _, stamps = run(num_busy=2, num_steps=4)
    assert stamps == [HeartbeatState.DRAINING] * 4


@pytest.mark.parametrize(
    ("timer_ns", "expected_ns"), [(None, HEARTBEAT_NS), (1030, 30), (1500, HEARTBEAT_NS), (900, 0)]
)
def test_a_sleep_ends_at_the_timer_or_the_heartbeat(timer_ns: int | None, expected_ns: int) -> None:
    """Whichever is first; a timer that has passed does not wait."""
    assert sleep_ns(timer_ns, 1000, HEARTBEAT_NS) == expected_ns


def test_a_doorbell_ends_the_sleep() -> None:
    """A rung bell makes the wait return although its time is far away."""
    bell = Doorbell.create()
    bell.ring()
    Wakeups([bell]).wait(timeout_ns=10**15)
    bell.close()
