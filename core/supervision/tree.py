"""The supervision tree of one engine as a pure state machine: one_for_one with epochs.

The ranks of a replica are one_for_all: when one ends the others are killed, and the whole group
starts again under one epoch. Only the death that came first counts against its restarts.

A replica that cannot load is given up alone as long as there is another one: the engine becomes
ready, and goes on, without it. Any other child that is given up ends the engine.

Owns: state, epoch and restart budget of every child, and the phase of the whole (running, leaving,
over). Never knows: processes, pages, signals, clocks. The supervisor's loop reports (`on_exit`,
`on_beat`, `on_tick`, `shutdown`, `restart`) and carries out the returned actions in order.

    RUNNING ── shutdown ──────────────────────────► LEAVING ── all stopped ──► OVER
       └────── give up ─► GIVING_UP ── grace over ──┘

The exit code is 0 after a shutdown, 70 after giving up, 1 when the engine was never ready.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from core.clock import NS_PER_MS
from core.supervision.actions import (
    EXIT_CANNOT_START,
    EXIT_GIVEN_UP,
    EXIT_OK,
    EXIT_UNUSABLE,
    Action,
    GiveUp,
    Kill,
    Start,
    Terminate,
)
from core.supervision.child import Child, has_other_replica, is_waited_for
from core.supervision.restarts import RestartBudget
from core.supervision.spec import ChildSpec, stop_order
from core.supervision.states import ProcessState
from core.supervision.watch import Activity, Beat, WatchLimits, is_hung


class Phase(Enum):
    """Where the engine as a whole stands."""

    RUNNING = "running"
    GIVING_UP = "giving_up"
    LEAVING = "leaving"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """The times and counts of `SupervisionConfig`, ns."""

    intensity: int
    period_ns: int
    hang_ns: int
    load_ns: int
    stop_ns: int
    grace_ns: int = 2_000_000_000  # after giving up, for error events to reach the clients


@dataclass(slots=True)
class SupervisionTree:
    """All children of an engine. `specs` are in start order."""

    specs: tuple[ChildSpec, ...]
    limits: TreeLimits
    phase: Phase = Phase.RUNNING
    exit_code: int = EXIT_OK
    was_ready: bool = False
    children: dict[str, Child] = field(init=False)
    leave_ns: int = 0  # GIVING_UP: when to begin LEAVING
    groups: list[tuple[ChildSpec, ...]] = field(default_factory=list)  # LEAVING: still to stop
    blind_until_ns: int = 0  # no verdict on silence before: the supervisor itself was away

    def __post_init__(self) -> None:
        """Make a stopped child of every specification."""
        self.children = {
            spec.id: Child(spec, RestartBudget(self.limits.intensity, self.limits.period_ns))
            for spec in self.specs
        }

    @property
    def is_ready(self) -> bool:
        """True while every child serves; replicas that have failed to load are not waited for if
        another one serves.
        """
        waiting = [c for c in self.children.values() if c.state is not ProcessState.RUNNING]
        return not any(is_waited_for(child, self.children.values()) for child in waiting)

    def start(self, now_ns: int) -> list[Action]:
        """Start every child, in order."""
        return [self._start(child, now_ns) for child in self.children.values()]

    def on_exit(self, child_id: str, returncode: int, now_ns: int) -> list[Action]:
        """The process of a child is gone (negative `returncode` = signal): restart it, give up, or
        count it as stopped.
        """
        child = self.children[child_id]
        if child.state is ProcessState.STOPPING:
            child.move_to(ProcessState.STOPPED)
            return self.on_tick(now_ns)
        was_starting = child.state is ProcessState.STARTING
        child.move_to(ProcessState.EXITED)
        if self.phase in (Phase.LEAVING, Phase.OVER):
            self._rest(child)
            return self.on_tick(now_ns)
        if any(other.state is ProcessState.GIVEN_UP for other in self._group(child)):
            child.move_to(ProcessState.GIVEN_UP)
            return self.on_tick(now_ns)
        if returncode == EXIT_UNUSABLE and was_starting and not child.has_served:
            return self._give_up(child, "", was_starting, now_ns)
        if not child.asked_to_restart and not child.budget.spend(now_ns):
            limits = self.limits
            reason = f"{limits.intensity + 1} deaths within {limits.period_ns // NS_PER_MS} ms"
            return self._give_up(child, reason, was_starting, now_ns)
        child.due_ns = now_ns + (0 if child.asked_to_restart else child.budget.backoff_ns())
        child.move_to(ProcessState.BACKOFF)
        child.restarts += 1
        return [*self._end_group(child), *self.on_tick(now_ns)]

    def on_beat(self, child_id: str, beat: Beat, now_ns: int) -> list[Action]:
        """Judge the last heartbeat of a child; it serves, is still starting, or hangs."""
        child = self.children[child_id]
        if child.state not in (ProcessState.STARTING, ProcessState.RUNNING) or child.killed:
            return []
        if beat.epoch != child.epoch:  # nothing of this instance yet
            beat = Beat(child.epoch, Activity.STARTING, 0, 0)
        if child.state is ProcessState.STARTING and beat.activity.is_serving:
            child.move_to(ProcessState.RUNNING)
            child.has_served = True
            self._look_if_ready()
        limits = WatchLimits(self.limits.hang_ns, self.limits.load_ns)
        if now_ns < self.blind_until_ns or not is_hung(beat, limits, child.started_ns, now_ns):
            return []
        child.killed = True
        silence_ms = (now_ns - max(beat.stamp_ns, child.started_ns)) // NS_PER_MS
        return [Kill(child_id, f"hangs: {beat.activity.name.lower()} for {silence_ms} ms")]

    def on_pause(self, gap_ns: int, now_ns: int) -> None:
        """The supervisor itself was away for `gap_ns`: believe no silence for as long again."""
        self.blind_until_ns = max(self.blind_until_ns, now_ns + gap_ns)

    def on_tick(self, now_ns: int) -> list[Action]:
        """Do what is due: starts after a backoff, kills after a stop timeout, the next group of a
        shutdown.
        """
        self._look_if_ready()
        actions: list[Action] = []
        for child in self.children.values():
            actions += self._due(child, now_ns)
        if self.phase is Phase.GIVING_UP and now_ns >= self.leave_ns:
            actions += self._leave(now_ns)
        elif self.phase is Phase.LEAVING:
            actions += self._stop_next_group(now_ns)
        return actions

    def next_timer_ns(self) -> int | None:
        """Return when `on_tick` has something to do, CLOCK_MONOTONIC ns; None = nothing planned."""
        dues = map(self._due_ns, self.children.values())
        times = [due_ns for due_ns in dues if due_ns is not None]
        if self.phase is Phase.GIVING_UP:
            times.append(self.leave_ns)
        return min(times, default=None)

    def restart(self, child_id: str, now_ns: int) -> list[Action]:
        """Restart a child on request; this does not count against its intensity, and a replica that
        was given up is tried again.
        """
        child = self.children[child_id]
        if child.state is ProcessState.GIVEN_UP:
            return self._try_again(child, now_ns)
        if (
            child.state not in (ProcessState.STARTING, ProcessState.RUNNING)
            or child.asked_to_restart
        ):
            return []
        child.asked_to_restart = True
        child.due_ns = now_ns + self.limits.stop_ns
        return [Terminate(child_id)]

    def shutdown(self, now_ns: int) -> list[Action]:
        """Stop the children group by group, in reverse order; no child is restarted any more."""
        if self.phase in (Phase.LEAVING, Phase.OVER):
            return []
        return self._leave(now_ns)

    def kill_all(self) -> list[Action]:
        """End every process at once (second signal)."""
        return [Kill(child.spec.id, "fast exit") for child in self._processes()]

    def _group(self, child: Child) -> Iterator[Child]:
        """The others of its group."""
        others = (other for other in self.children.values() if other is not child)
        return (other for other in others if other.spec.group == child.spec.group)

    def _end_group(self, child: Child) -> list[Action]:
        """A member has ended: end the others, whose deaths are not their own."""
        actions: list[Action] = []
        for other in self._group(child):
            if other.state is ProcessState.BACKOFF and child.state is ProcessState.GIVEN_UP:
                other.move_to(ProcessState.GIVEN_UP)
                other.due_ns = None
            if other.state in (ProcessState.STARTING, ProcessState.RUNNING):
                other.asked_to_restart = True
                other.due_ns = None
                if not other.killed:
                    actions.append(Kill(other.spec.id, f"its group has lost {child.spec.id}"))
                other.killed = True
        return actions

    def _due_ns(self, child: Child) -> int | None:
        """Return when something is due; a start, when it is due for the whole group."""
        if child.state is not ProcessState.BACKOFF or child.due_ns is None:
            return child.due_ns
        latest_ns = child.due_ns
        for other in self._group(child):
            if other.state is not ProcessState.BACKOFF or other.due_ns is None:
                return None
            latest_ns = max(latest_ns, other.due_ns)
        return latest_ns

    def _processes(self) -> Iterator[Child]:
        return (child for child in self.children.values() if child.state.has_process)

    def _start(self, child: Child, now_ns: int) -> Start:
        child.move_to(ProcessState.STARTING)
        child.epoch += 1
        child.started_ns = now_ns
        child.due_ns = None
        child.killed = child.asked_to_restart = False
        return Start(child.spec.id, child.epoch)

    def _due(self, child: Child, now_ns: int) -> list[Action]:
        due_ns = self._due_ns(child)
        if due_ns is None or now_ns < due_ns:
            return []
        if child.state is ProcessState.BACKOFF:
            return [self._start(each, now_ns) for each in (child, *self._group(child))]
        child.due_ns = None
        if child.killed:
            return []
        child.killed = True
        return [
            Kill(
                child.spec.id, f"has not ended {self.limits.stop_ns // NS_PER_MS} ms after SIGTERM"
            )
        ]

    def _give_up(self, child: Child, reason: str, was_starting: bool, now_ns: int) -> list[Action]:
        child.move_to(ProcessState.GIVEN_UP)
        child.due_ns = None
        ends_engine = not (was_starting and has_other_replica(child, self.children.values()))
        if ends_engine and self.phase is Phase.RUNNING:
            self.phase = Phase.GIVING_UP
            self.exit_code = EXIT_GIVEN_UP if self.was_ready else EXIT_CANNOT_START
            self.leave_ns = now_ns + (self.limits.grace_ns if self.was_ready else 0)
        given_up = GiveUp(child.spec.id, reason, ends_engine)
        return [given_up, *self._end_group(child), *self.on_tick(now_ns)]

    def _look_if_ready(self) -> None:
        if not self.was_ready and self.phase is Phase.RUNNING:
            self.was_ready = self.is_ready

    def _try_again(self, child: Child, now_ns: int) -> list[Action]:
        """Start what was given up, its deaths forgiven, unless the engine ends because of it."""
        group = (child, *self._group(child))
        if self.phase is not Phase.RUNNING or any(each.state.has_process for each in group):
            return []
        for each in group:
            each.budget.forgive()
            each.restarts += 1
        return [self._start(each, now_ns) for each in group]

    def _leave(self, now_ns: int) -> list[Action]:
        self.phase = Phase.LEAVING
        self.groups = list(stop_order(self.specs))
        for child in self.children.values():
            if child.state is ProcessState.BACKOFF:
                self._rest(child)
        return self._stop_next_group(now_ns)

    def _rest(self, child: Child) -> None:
        """Let a child without a process stay down."""
        if child.state is ProcessState.EXITED:
            child.move_to(ProcessState.BACKOFF)
        child.move_to(ProcessState.STOPPED)
        child.due_ns = None

    def _stop_next_group(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        while self.groups and not any(
            self.children[s.id].state.has_process for s in self.groups[0]
        ):
            self.groups.pop(0)
        if not self.groups:
            self.phase = Phase.OVER
            return []
        for spec in self.groups[0]:
            child = self.children[spec.id]
            if child.state in (ProcessState.STARTING, ProcessState.RUNNING):
                child.move_to(ProcessState.STOPPING)
                child.due_ns = now_ns + self.limits.stop_ns
                actions.append(Terminate(spec.id))
        return actions
