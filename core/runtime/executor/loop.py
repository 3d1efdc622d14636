"""The executor's loop: reads plans, has them computed, sends the results.

Owns: the order read → launch → collect → send, and the promise in the heartbeat of how long a step
may take. Never knows: what a step computes (`core.executor`) or why (`core.scheduler`). It never
holds more than the plans that the scheduler allows to be in flight; a second one is launched while
the first runs, where the executor can. Ranks beside the first compute the same
plans under the same epoch, since their group is always started as one, and send nothing.

    a plan for another executor epoch   dropped: it was made for a predecessor
    a plan of another scheduler epoch   what is kept per row is forgotten first
    frames lost, or a plan unreadable   the process ends: a restart is the resynchronization
"""

from collections import deque
from collections.abc import Sequence

from core.clock import NS_PER_MS, Clock
from core.executor.protocol import Executor, ExecutorInfo, RunningStep
from core.histogram import Histogram
from core.runtime.executor.channels import ExecutorChannels
from core.scheduler.frames import read_plan, result_parts
from core.scheduler.plan import StepPlan, StepResult
from ipc.board import BoardWriter
from ipc.channel import Buffer
from ipc.heartbeat import HeartbeatState
from ipc.pages import STEP_BUCKETS_S

PUBLISH_NS = 50 * NS_PER_MS
POLL_NS = NS_PER_MS  # between two looks at a step that runs while another plan may come


class ExecutorLoop:
    """The loop of one executor process, under its `epoch`."""

    def __init__(
        self, executor: Executor, epoch: int, step_timeout_ns: int, pipeline_depth: int = 1
    ) -> None:
        """At most `pipeline_depth` steps are given to the executor before one is collected."""
        self._executor = executor
        self._epoch = epoch
        self._step_timeout_ns = step_timeout_ns
        self._depth = pipeline_depth
        self._running: deque[tuple[int, RunningStep]] = deque()  # when it was launched
        self._looked_ns = 0
        self._collected_ns = 0  # when the last result was there
        self._scheduler_epoch = 0
        self._unsent: Sequence[Buffer] | None = None
        self._published_ns = 0
        self._is_page_old = False
        self._last_step_ns = 0
        self._step_time = Histogram(STEP_BUCKETS_S)
        self.stale_frames = 0

    def step(self, channels: ExecutorChannels, clock: Clock) -> bool:
        """Give the executor a plan, send the result of one that is done; or first send a result for
        which there was no room.
        """
        if self._unsent is not None and not self._send(channels, self._unsent):
            return False
        has_plan = len(self._running) < self._depth and self._take_up(channels, clock)
        self._looked_ns = clock.now_ns()
        if self._is_result_due():
            self._collect(channels, clock)
            return True
        if not has_plan:
            self._publish(channels.page, self._looked_ns)
        return has_plan

    def next_timer_ns(self) -> int | None:
        """Without a plan nothing is due but the page, and a look at a step that runs."""
        if self._running:
            return self._looked_ns + POLL_NS
        return self._published_ns + PUBLISH_NS if self._is_page_old else None

    def state(self) -> HeartbeatState:
        """Busy while a step runs, also one that nobody waits for."""
        return HeartbeatState.BUSY if self._running else HeartbeatState.IDLE

    def close(self, channels: ExecutorChannels, clock: Clock) -> None:
        """Publish the page a last time, for whoever goes on from it."""
        self._show(channels.page, clock.now_ns())

    def _take_up(self, channels: ExecutorChannels, clock: Clock) -> bool:
        """Launch the oldest plan, if there is one."""
        frame = channels.plans.receive()
        if frame is None:
            return False
        plan = read_plan(frame)
        if plan.epoch == self._epoch:
            self._launch(plan, channels, clock)
        else:
            self.stale_frames += 1
            self._is_page_old = True
        channels.plans.acknowledge()
        return True

    def _launch(self, plan: StepPlan, channels: ExecutorChannels, clock: Clock) -> None:
        if plan.scheduler_epoch != self._scheduler_epoch:
            self._scheduler_epoch = plan.scheduler_epoch
            self._executor.forget_rows()
        now_ns = clock.now_ns()
        channels.stamp(HeartbeatState.BUSY, now_ns, now_ns + self._step_timeout_ns)
        self._running.append((now_ns, self._executor.launch(plan)))

    def _is_result_due(self) -> bool:
        """Tell whether to wait for the oldest step: it is done, nothing else can be done, or it
        takes so long that the loop must not look alive any longer.
        """
        if not self._running:
            return False
        launched_ns, step = self._running[0]
        is_late = self._looked_ns - self._begin_ns(launched_ns) > self._step_timeout_ns
        return len(self._running) == self._depth or step.is_done() or is_late

    def _begin_ns(self, launched_ns: int) -> int:
        """Return when the oldest step began: at the end of the one before, if it ran till then."""
        return max(launched_ns, self._collected_ns)

    def _collect(self, channels: ExecutorChannels, clock: Clock) -> None:
        launched_ns, step = self._running.popleft()
        if not step.is_done():
            until_ns = self._begin_ns(launched_ns) + self._step_timeout_ns
            channels.stamp(HeartbeatState.BUSY, clock.now_ns(), until_ns)
        result = step.collect()
        self._collected_ns = clock.now_ns()
        channels.stamp(self.state(), self._collected_ns)
        self._send(channels, result_parts(result))
        self._count(result)
        self._publish(channels.page, clock.now_ns())

    def _send(self, channels: ExecutorChannels, parts: Sequence[Buffer]) -> bool:
        is_sent = channels.results is None or channels.results.send(parts)
        self._unsent = None if is_sent else parts
        return is_sent

    def _count(self, result: StepResult) -> None:
        self._last_step_ns = result.finished_ns
        self._step_time.observe_ns(result.finished_ns - result.started_ns)
        self._is_page_old = True

    def _publish(self, writer: BoardWriter, now_ns: int) -> None:
        """Show what was counted, unless that was done just now."""
        if not self._is_page_old or now_ns - self._published_ns < PUBLISH_NS:
            return
        self._published_ns, self._is_page_old = now_ns, False
        self._show(writer, now_ns)

    def _show(self, writer: BoardWriter, now_ns: int) -> None:
        page, before = writer.page, writer.predecessor
        statistics = self._executor.statistics()
        page["steps"] = before["steps"] + self._step_time.count
        page["tokens"] = before["tokens"] + statistics.tokens
        page["stale_frames"] = before["stale_frames"] + self.stale_frames
        page["last_step_ns"] = self._last_step_ns
        device = statistics.device
        page["gpu_known"] = device.is_known
        page["gpu_utilization"] = device.utilization
        page["gpu_memory_used_bytes"] = device.memory_used_bytes
        page["gpu_power_watts"] = device.power_watts
        page["gpu_temperature_celsius"] = device.temperature_celsius
        self._step_time.fill(page["step_time"])
        page["step_time"]["counts"] += before["step_time"]["counts"]
        page["step_time"]["sum"] += before["step_time"]["sum"]
        writer.publish(now_ns)


def show_info(info: ExecutorInfo, model: str, writer: BoardWriter, now_ns: int) -> None:
    """Publish what the executor has loaded; the scheduler sizes its pool by it."""
    page = writer.page
    for name in ("steps", "tokens", "stale_frames", "step_time"):
        page[name] = writer.predecessor[name]
    for name in (
        "weights_bytes", "kv_bytes", "num_kv_blocks", "num_host_blocks", "block_bytes",
        "swap_gb_per_s", "threads",
    ):  # fmt: skip
        page[name] = getattr(info, name)
    if info.basis is not None:
        page["cost_basis"] = info.basis
    page["kernel_path"] = info.kernel_path.encode()[:32]
    page["device_name"] = info.device_name.encode()[:64]
    page["model"] = model.encode()[:128]
    writer.publish(now_ns)
