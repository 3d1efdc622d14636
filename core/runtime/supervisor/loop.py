"""The supervisor's loop: it starts the children, watches them, and carries out what the tree says.

Owns: the processes, the supervisor's page and heartbeat, signals and the control socket. Never
knows: requests. What to do about a death, a silence or a signal is decided in
`core.supervision.tree`; this file only notices and acts, in one order, once a turn:

    wait → own pause? → signals → control calls → exits → heartbeats → drain → timers → page

A new epoch is on the page before the process exists, so peers never meet an instance that they
could mistake for its predecessor.
"""

import logging
import os
import signal
from collections.abc import Callable, Mapping
from types import FrameType

import zmq

from core.clock import NS_PER_MS, NS_PER_S, Clock
from core.config.headrace import HeadraceConfig
from core.model_card import ModelCard
from core.runtime.supervisor.calls import Executors, SupervisorCalls
from core.runtime.supervisor.drain import Drain
from core.runtime.supervisor.faults import Faults, describe
from core.runtime.supervisor.launch import ChildProcess, child_environment, child_setup, start_child
from core.runtime.supervisor.log_levels import LogLevels
from core.runtime.supervisor.page import SupervisorPage
from core.runtime.supervisor.reload import Reload
from core.runtime.supervisor.roster import Roster
from core.runtime.supervisor.stage import Stage
from core.runtime.supervisor.tenants import TenantCommands
from core.runtime.wiring import SUPERVISOR, heartbeat_slots
from core.supervision.actions import Action, GiveUp, Kill, Start, Terminate
from core.supervision.spec import ChildKind, ChildSpec
from core.supervision.tree import Phase, SupervisionTree, TreeLimits
from core.supervision.watch import Activity, Beat
from ipc.doorbell import Doorbell
from ipc.heartbeat import HeartbeatLine, Heartbeats, HeartbeatState

PAUSE_TICKS = 5  # a turn that took longer than so many ticks was a pause of our own
EXIT_FAST = 130
JANITOR_WAIT_S = 2.0

log = logging.getLogger(__name__)


def tree_limits(config: HeadraceConfig) -> TreeLimits:
    """Return the limits of the configuration in the tree's units."""
    supervision = config.supervision
    return TreeLimits(
        intensity=supervision.intensity,
        period_ns=supervision.period_ms * NS_PER_MS,
        hang_ns=supervision.hang_timeout_ms * NS_PER_MS,
        load_ns=supervision.load_timeout_ms * NS_PER_MS,
        stop_ns=supervision.stop_timeout_ms * NS_PER_MS,
    )


class Supervisor:
    """One engine, from the start of its children to their end: `start`, `turn` …, `close`."""

    def __init__(
        self,
        config: HeadraceConfig,
        card: ModelCard,
        stage: Stage,
        specs: tuple[ChildSpec, ...],
        environ: Mapping[str, str],
        clock: Clock,
        load_config: Callable[[], HeadraceConfig],
    ) -> None:
        """Take over `stage`; its owner closes it after `close`. `load_config` reads the
        configuration anew; raises ConfigError.
        """
        self.tree = SupervisionTree(specs, tree_limits(config))
        self._config = config
        self._card = card
        self._stage = stage
        self._environ = environ
        self._clock = clock
        self._slots = heartbeat_slots(specs)
        self._processes: dict[str, ChildProcess] = {}
        self._roster = Roster()
        heartbeats = stage.segments[stage.directory.heartbeats]
        self._beats = Heartbeats(heartbeats)
        self._line = HeartbeatLine(heartbeats, self._slots[SUPERVISOR])
        self._faults = Faults(stage.directory)
        self._page = SupervisorPage(stage, self._faults.text)
        self._bell = Doorbell.create()
        self._signals: list[int] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        tenants, log_levels = TenantCommands(config, stage), LogLevels(self._line)
        reload = Reload(config, load_config, tenants, log_levels)
        self._calls = SupervisorCalls(
            self._context, stage.directory, Executors(tenants, reload, log_levels)
        )
        self._drain = Drain(self._context, stage)
        self._is_fast_exit = False
        self._poller = zmq.Poller()
        self._poller.register(self._calls.socket, zmq.POLLIN)
        self._poller.register(self._bell, zmq.POLLIN)
        self._tick_ns = config.supervision.heartbeat_ms * NS_PER_MS
        self._last_turn_ns = clock.now_ns()

    def start(self) -> None:
        """Install the signal handlers and start every child."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._line.serve(1)
        self._act(self.tree.start(self._clock.now_ns()))

    def turn(self) -> None:
        """Wait for the next thing to happen, or a tick, and do all that is due."""
        ready = {source for source, _ in self._poller.poll(self._timeout_ms())}
        now_ns = self._clock.now_ns()
        if now_ns - self._last_turn_ns > PAUSE_TICKS * self._tick_ns:
            self.tree.on_pause(now_ns - self._last_turn_ns, now_ns)
        self._last_turn_ns = now_ns
        self._line.stamp(self._state(), now_ns)
        self._take_signals(now_ns)
        self._take_calls(now_ns)
        self._collect_exits(ready, now_ns)
        self._look_at_heartbeats(now_ns)
        self._look_at_drain(now_ns)
        self._act(self.tree.on_tick(now_ns))
        self._page.publish(self.tree, self._pids(), self._clock.now_ns())

    @property
    def is_over(self) -> bool:
        """True when every child has been stopped."""
        return self.tree.phase is Phase.OVER

    @property
    def exit_code(self) -> int:
        """What the process should return."""
        return EXIT_FAST if self._is_fast_exit else self.tree.exit_code

    def close(self) -> None:
        """Let the janitor go and drop what is ours; kills whatever still runs, after a fault."""
        self._roster.close()
        for child_id, process in self._processes.items():
            if child_id != "janitor":
                process.send_signal(signal.SIGKILL)
        for process in self._processes.values():
            process.wait(JANITOR_WAIT_S)
            process.close()
        self._drain.close()
        self._calls.close()
        self._context.term()
        self._bell.close()

    def request_stop(self, drain_ns: int, now_ns: int) -> None:
        """Refuse new requests from now on; stop when the running ones are done, or after
        `drain_ns`. Asked again, the earlier end counts.
        """
        if self._page.is_stopping:
            self._drain.shorten(now_ns + drain_ns)
            return
        self._page.is_stopping = True
        self._page.publish(self.tree, self._pids(), now_ns)
        if self.tree.was_ready and drain_ns > 0 and self.tree.phase is Phase.RUNNING:
            self._drain.begin(now_ns + drain_ns)
        else:
            self._act(self.tree.shutdown(now_ns))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        self._bell.ring()

    def _state(self) -> HeartbeatState:
        return HeartbeatState.DRAINING if self._drain.is_running else HeartbeatState.IDLE

    def _timeout_ms(self) -> int:
        timer_ns = self.tree.next_timer_ns()
        if timer_ns is None:
            return self._tick_ns // NS_PER_MS
        wait_ns = min(max(timer_ns - self._clock.now_ns(), 0), self._tick_ns)
        return -(-wait_ns // NS_PER_MS)

    def _take_signals(self, now_ns: int) -> None:
        self._bell.clear()
        while self._signals:
            number = self._signals.pop(0)
            if self._page.is_stopping:
                log.warning("%s again: ending at once", signal.Signals(number).name)
                self._is_fast_exit = True
                self._act(self.tree.kill_all())
                self._act(self.tree.shutdown(now_ns))
                continue
            log.info("%s: stopping", signal.Signals(number).name)
            self.request_stop(self._config.scheduler.drain_timeout_ms * NS_PER_MS, now_ns)

    def _take_calls(self, now_ns: int) -> None:
        def stop(drain_s: float) -> None:
            self.request_stop(int(drain_s * NS_PER_S), now_ns)

        default_s = self._config.scheduler.drain_timeout_ms / 1000
        for child_id in self._calls.receive(self.tree, default_s, now_ns, stop):
            self._act(self.tree.restart(child_id, now_ns))

    def _collect_exits(self, ready: set[object], now_ns: int) -> None:
        for child_id, process in list(self._processes.items()):
            if process.pidfd not in ready or (returncode := process.returncode()) is None:
                continue
            self._poller.unregister(process)
            process.close()
            del self._processes[child_id]
            if self.tree.phase is not Phase.LEAVING or returncode != 0:
                log.warning("%s (pid %d) %s", child_id, process.pid, describe(returncode))
            self._faults.ended(child_id, returncode)
            self._act(self.tree.on_exit(child_id, returncode, now_ns))

    def _look_at_heartbeats(self, now_ns: int) -> None:
        for child_id in list(self._processes):
            beat = self._beats.read(self._slots[child_id])
            known = Beat(beat.epoch, Activity(beat.state), beat.stamp_ns, beat.busy_until_ns)
            self._act(self.tree.on_beat(child_id, known, now_ns))

    def _look_at_drain(self, now_ns: int) -> None:
        if self.tree.phase is Phase.RUNNING and self._drain.is_done(now_ns):
            self._act(self.tree.shutdown(now_ns))

    def _act(self, actions: list[Action]) -> None:
        """Carry out actions; a child that cannot even be started counts as one that has died."""
        for action in actions:
            process = self._processes.get(action.child_id)
            match action:
                case Start(child_id, epoch):
                    self._start(child_id, epoch)
                case Terminate() if process is not None:
                    process.send_signal(signal.SIGTERM)
                case Kill(child_id, reason) if process is not None:
                    log.warning("%s (pid %d) %s: killing it", child_id, process.pid, reason)
                    self._faults.killed(child_id, reason)
                    process.send_signal(signal.SIGKILL)
                case GiveUp(child_id, reason, ends_engine):
                    self._give_up(child_id, reason, ends_engine)

    def _start(self, child_id: str, epoch: int) -> None:
        now_ns = self._clock.now_ns()
        self._page.publish(self.tree, self._pids(), now_ns)
        spec = self.tree.children[child_id].spec
        is_janitor = spec.kind is ChildKind.JANITOR
        extra = {"roster": self._roster.reopen(self._pids())} if is_janitor else {}
        setup = child_setup(spec, epoch, self._slots, self._stage, self._config, self._card, extra)
        try:
            process = start_child(spec, setup, child_environment(spec, self._config, self._environ))
        except OSError as error:
            log.error("%s cannot be started: %s", child_id, error)
            self._faults.not_started(child_id, str(error))
            self._act(self.tree.on_exit(child_id, os.EX_OSERR, now_ns))
            return
        self._processes[child_id] = process
        self._poller.register(process, zmq.POLLIN)
        if not is_janitor:
            self._roster.add(process.pid)
        if epoch > 1:
            log.warning("%s restarted as epoch %d (pid %d)", child_id, epoch, process.pid)

    def _give_up(self, child_id: str, reason: str, ends_engine: bool) -> None:
        """Say so, unless the child has said the same itself."""
        self._faults.given_up(child_id, reason)
        if not ends_engine:
            fault = self._faults.text(child_id)
            log.critical(
                "%s cannot load and is given up: the engine goes on with the other replicas (%s)",
                child_id, fault,
            )  # fmt: skip
        elif reason:
            log.critical("%s is given up after %s: the engine ends", child_id, reason)

    def _pids(self) -> dict[str, int]:
        return {child_id: process.pid for child_id, process in self._processes.items()}
