"""A process's first lines: how a supervisor hands over and how a child takes up.

Owns: the setup (`ChildSetup`) on an inherited fd, the wish to die with the parent, SIGTERM, the log
line format, the child's own heartbeat line, and its way to pages of the board. Never knows: what
the child does (`core.runtime`, `frontends`), or when it is restarted.

    parent                                          child
    write_setup(setup) → fd (memfd)                 argv[1] = fd → ChildSetup, fd closed
    child_command(module, fd), pass_fds = [fd, *]   Child.attach(argv)
    keeps the write end of the pipe "death"         PR_SET_PDEATHSIG, then getppid again
    SIGTERM                                         stop_requested, `stop_doorbell` becomes readable
    reads its heartbeat line                        stamp() at every step, serving() once ready

Two deaths are covered: PR_SET_PDEATHSIG kills the child at once; the pipe "death" reaches its end
when the last holder of the write end is gone, which also a process that has changed its parent (or
the janitor) can see.
"""

import ctypes
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np

from ipc.board import BoardReader, BoardWriter
from ipc.diagnostics import LogTail, leave_last_words, tell_stacks
from ipc.directory import DirectoryReader, DirectoryWatch
from ipc.doorbell import Doorbell
from ipc.errors import ChildSetupError
from ipc.heartbeat import Heartbeat, HeartbeatLine, Heartbeats, HeartbeatState
from ipc.run_directory import RunDirectory
from ipc.segment import Segment

LEADER = "supervisor"  # whose heartbeat line says what all shall log
MAX_SETUP_BYTES = 16 * 1024 * 1024
_PR_SET_PDEATHSIG = 1
_LOG_FORMAT = "%(asctime)s %(levelname)s {child_id} %(message)s"


class ChildSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a child is told at its start."""

    child_id: str  # e.g. "executor.0.1"
    epoch: int  # of this instance, from 1
    slot: int  # its heartbeat line
    run_dir: str
    parent_pid: int
    peers: dict[str, int]  # child id → heartbeat slot, of all children
    fds: dict[str, int]  # doorbells, listening sockets, "death"
    config: msgspec.Raw = msgspec.Raw(b"null")  # HeadraceConfig as JSON
    model: msgspec.Raw = msgspec.Raw(b"null")  # core.model_card.ModelCard as JSON
    log_level: str = "INFO"


def write_setup(setup: ChildSetup) -> int:
    """Return an fd from which the child reads `setup`; to be passed on and then closed."""
    fd = os.memfd_create("child-setup", os.MFD_CLOEXEC)
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(msgspec.json.encode(setup))
    return fd


def read_setup(fd: int) -> ChildSetup:
    """Return the setup that lies in `fd`; raises ChildSetupError."""
    try:
        return msgspec.json.decode(os.pread(fd, MAX_SETUP_BYTES, 0), type=ChildSetup)
    except (OSError, msgspec.DecodeError) as error:
        raise ChildSetupError(f"fd {fd} holds no setup of a child: {error}") from error


def child_command(module: str, setup_fd: int) -> list[str]:
    """Return the command line of a child: -P keeps the current directory off the import path, and
    it runs with -O if we do.
    """
    optimized = ["-O"] if sys.flags.optimize else []
    return [sys.executable, *optimized, "-P", "-m", module, str(setup_fd)]


def inherited_fds(setup: ChildSetup, setup_fd: int) -> tuple[int, ...]:
    """Return what must stand in `pass_fds`."""
    return (setup_fd, *sorted(set(setup.fds.values())))


class Child:
    """This process as a child of the supervisor. One per process, made by `attach`."""

    def __init__(self, setup: ChildSetup, heartbeats: Segment, stop_doorbell: Doorbell) -> None:
        """For `attach` and for tests; installs nothing."""
        self.setup = setup
        self.run_directory = RunDirectory.attach(Path(setup.run_dir))
        self.stop_doorbell = stop_doorbell
        self.stop_requested = False
        self._line = HeartbeatLine(heartbeats, setup.slot)
        self._heartbeats = Heartbeats(heartbeats)
        self._leader = setup.peers.get(LEADER, setup.slot)
        self._log_level = 0

    @classmethod
    def attach(cls, argv: Sequence[str]) -> "Child":
        """Take up this process's setup, signals, logging and heartbeat line.

        Raises ChildSetupError if it was not started by a supervisor that still lives.
        """
        if len(argv) != 2 or not argv[1].isdecimal():
            raise ChildSetupError(f"{argv[0]} is started by `headrace serve`, not by hand")
        setup_fd = int(argv[1])
        setup = read_setup(setup_fd)
        os.close(setup_fd)
        die_with_parent(setup.parent_pid)
        heartbeats = Segment.open(RunDirectory.attach(Path(setup.run_dir)).heartbeats)
        child = cls(setup, heartbeats, Doorbell.create())
        signal.signal(signal.SIGTERM, child.handle_sigterm)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the supervisor's
        _log_to_stderr(setup.child_id, setup.log_level, child.run_directory)
        tell_stacks(child.run_directory.stacks(setup.child_id))
        return child

    @property
    def child_id(self) -> str:
        """Its own name, e.g. "tokenizer.0"."""
        return self.setup.child_id

    @property
    def epoch(self) -> int:
        """Which instance of that name this is."""
        return self.setup.epoch

    def fd(self, name: str) -> int:
        """Return an inherited fd; raises ChildSetupError if none of that name was passed."""
        try:
            return self.setup.fds[name]
        except KeyError:
            raise ChildSetupError(f"{self.child_id} was given no fd named {name!r}") from None

    def doorbell(self, name: str) -> Doorbell:
        """Return an inherited doorbell, e.g. "plan.0.0"."""
        return Doorbell(self.fd(name))

    def listening_socket(self, name: str) -> socket.socket:
        """Return an inherited, bound TCP socket: "http" or "admin"."""
        return socket.socket(fileno=self.fd(name))

    def page(self, fields: np.dtype[Any]) -> BoardWriter:
        """Return the writing end of its own board page, with such `fields` of `ipc.pages`."""
        return BoardWriter(
            Segment.open(self.run_directory.board(self.child_id)), fields, self.epoch
        )

    def page_of(self, child_id: str, fields: np.dtype[Any]) -> BoardReader:
        """Return the reading end of another child's board page."""
        segment = Segment.open(self.run_directory.board(child_id), readonly=True)
        return BoardReader(segment, fields)

    def stamp(self, state: HeartbeatState, now_ns: int, busy_until_ns: int = 0) -> None:
        """Say that the loop runs; called by the loop itself, at every step."""
        self._line.stamp(state, now_ns, busy_until_ns)
        if self._heartbeats.log_level(self._leader) != self._log_level:
            self._go_by_log_level(self._heartbeats.log_level(self._leader))

    def _go_by_log_level(self, level: int) -> None:
        """Write what the supervisor wants written, and say so."""
        logging.getLogger().setLevel(level)
        self._log_level = level
        self._line.set_log_level(level)

    def serving(self) -> None:
        """Say that this instance is ready: its epoch appears in its heartbeat line."""
        self._line.serve(self.epoch)

    def tell_fault(self, error: Exception) -> None:
        """Say in one line why this process cannot go on: on stderr, and to the supervisor."""
        line = " ".join(str(error).split())
        sys.stderr.write(f"error: {self.child_id}: {line}\n")
        try:
            leave_last_words(self.run_directory.last_words(self.child_id), line)
        except OSError as failure:
            sys.stderr.write(f"error: {self.child_id}: cannot tell the supervisor: {failure}\n")

    def directory(self) -> DirectoryWatch:
        """Return a watch over the tenant directory that tells this child's progress."""
        segment = Segment.open(self.run_directory.directory, readonly=True)
        return DirectoryWatch(DirectoryReader(segment).read, self._line.go_by)

    def peer(self, child_id: str) -> Heartbeat:
        """Return the heartbeat of another child; raises ChildSetupError if there is none such."""
        return self._heartbeats.read(self.peer_slot(child_id))

    def peer_epoch(self, child_id: str) -> int:
        """Return the epoch of which another child serves, 0 = none yet."""
        return self._heartbeats.epoch(self.peer_slot(child_id))

    def peer_slot(self, child_id: str) -> int:
        """Return the heartbeat slot of another child."""
        try:
            return self.setup.peers[child_id]
        except KeyError:
            raise ChildSetupError(f"{self.child_id} knows no peer {child_id!r}") from None

    def parent_is_gone(self) -> bool:
        """Return whether the pipe "death" has reached its end; for pollers that watch its fd."""
        poller = select.poll()
        poller.register(self.fd("death"), select.POLLIN)
        return bool(poller.poll(0))

    def handle_sigterm(self, signal_number: int, frame: FrameType | None) -> None:
        """Ask the loop to stop, and wake it."""
        self.stop_requested = True
        self.stop_doorbell.ring()


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent dies; ChildSetupError if it has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise ChildSetupError(f"PR_SET_PDEATHSIG: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent_pid:
        raise ChildSetupError(f"the supervisor (pid {parent_pid}) died during the start")


def _log_to_stderr(child_id: str, level: str, directory: RunDirectory) -> None:
    line_format = _LOG_FORMAT.format(child_id=child_id)
    logging.basicConfig(stream=sys.stderr, level=level, format=line_format, force=True)
    logging.getLogger().addHandler(LogTail(directory.log(child_id), line_format))
