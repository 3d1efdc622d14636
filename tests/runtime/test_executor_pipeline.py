"""An executor's loop over a device that goes on by itself: two steps at once, answers in order."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from core.executor.protocol import NO_STATISTICS, ExecutorInfo, ExecutorStatistics
from core.runtime.executor.channels import ExecutorChannels
from core.runtime.executor.loop import POLL_NS, ExecutorLoop
from core.scheduler.frames import plan_parts, read_result
from core.scheduler.plan import PLAN_ROW, RESULT_ROW, StepPlan, StepResult
from core.simulation.virtual_clock import VirtualClock
from ipc.board import BoardWriter, board_layout
from ipc.heartbeat import HeartbeatState
from ipc.layout import anonymous_segment
from ipc.loopback import LoopbackRing, LoopbackRingReader, LoopbackRingWriter
from ipc.pages import EXECUTOR_PAGE

EPOCH = 1
TIMEOUT_NS = 10**9


@dataclass(slots=True)
class SlowStep:
    """A step that ends when the test says so."""

    step: int
    is_over: bool = False
    collected: bool = False

    def is_done(self) -> bool:
        """As the test says."""
        return self.is_over

    def collect(self) -> StepResult:
        """Answer for the step."""
        self.collected = True
        return StepResult(0, EPOCH, self.step, 0, 1, np.empty(0, RESULT_ROW))


@dataclass(slots=True)
class SlowDevice:
    """Keeps every step that it is given."""

    steps: list[SlowStep] = field(default_factory=list)

    def load(self) -> ExecutorInfo:
        """Nobody asks."""
        raise NotImplementedError

    def launch(self, plan: StepPlan) -> SlowStep:
        """Take a step."""
        self.steps.append(SlowStep(plan.step))
        return self.steps[-1]

    def execute(self, plan: StepPlan) -> StepResult:
        """Nobody asks."""
        raise NotImplementedError

    def forget_rows(self) -> None:
        """There are none."""

    def statistics(self) -> ExecutorStatistics:
        """None are kept."""
        return NO_STATISTICS


class Rig:
    """A loop of some depth, its device, and the scheduler's ends of its rings."""

    def __init__(self, depth: int) -> None:
        plans, results = LoopbackRing(4, 1 << 12), LoopbackRing(4, 1 << 12)
        self.device = SlowDevice()
        self.clock = VirtualClock()
        self.loop = ExecutorLoop(self.device, EPOCH, TIMEOUT_NS, depth)
        self.stamps: list[tuple[HeartbeatState, int]] = []
        page = BoardWriter(anonymous_segment(board_layout(EXECUTOR_PAGE)), EXECUTOR_PAGE, EPOCH)
        self.channels = ExecutorChannels(
            LoopbackRingReader(plans), LoopbackRingWriter(results), page, self._stamp
        )
        self._plans, self._results = LoopbackRingWriter(plans), LoopbackRingReader(results)

    def _stamp(self, state: HeartbeatState, now_ns: int, busy_until_ns: int = 0) -> None:
        self.stamps.append((state, busy_until_ns))

    def send(self, step: int) -> None:
        """Send a plan."""
        assert self._plans.send(plan_parts(StepPlan(0, EPOCH, step, np.empty(0, PLAN_ROW))))

    def answered(self) -> list[int]:
        """Return the steps whose results have come."""
        steps = []
        while (frame := self._results.receive()) is not None:
            steps.append(read_result(frame).step)
            self._results.acknowledge()
        return steps

    def step(self) -> bool:
        """Let the loop take a step."""
        return self.loop.step(self.channels, self.clock)


def test_a_second_step_is_launched_while_the_first_runs() -> None:
    """Its plan may come at any time; until the first is done the loop looks again soon."""
    rig = Rig(2)
    rig.send(1)
    assert rig.step()
    assert not rig.step()
    assert rig.loop.next_timer_ns() == rig.clock.now_ns() + POLL_NS
    rig.send(2)
    assert rig.step()
    assert [step.step for step in rig.device.steps] == [1, 2]
    assert rig.answered() == [1]
    assert not rig.step()
    rig.device.steps[1].is_over = True
    assert rig.step()
    assert rig.answered() == [2]


def test_no_more_steps_than_the_depth_are_launched() -> None:
    """The loop waits for the oldest step when it holds as many as it may."""
    rig = Rig(1)
    for step in (1, 2, 3):
        rig.send(step)
    assert rig.step()
    assert [step.collected for step in rig.device.steps] == [True]
    assert rig.answered() == [1]


@pytest.mark.parametrize("wait_ns", [TIMEOUT_NS // 2, TIMEOUT_NS + 1])
def test_a_step_that_never_ends_makes_the_loop_fall_silent(wait_ns: int) -> None:
    """Beyond the time a step may take the loop waits for it, under the promise it gave at first."""
    rig = Rig(2)
    rig.send(1)
    rig.step()
    promised = rig.stamps[-1]
    rig.clock.advance(wait_ns)
    rig.step()
    is_late = wait_ns > TIMEOUT_NS
    assert rig.device.steps[0].collected is is_late
    assert (promised in rig.stamps[1:]) is is_late
