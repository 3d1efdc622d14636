"""The stage of an engine on which only admin workers are real: memory, papers and sockets as a
supervisor makes them.

Owns: the run directory, all segments, the processes it started. A test fills the pages of the
missing processes.
"""

import hashlib
import os
import signal
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np

from core.config.file import config_to_json
from core.config.headrace import HeadraceConfig
from core.config.processes import MAX_ADMIN_WORKERS
from core.model_card import ModelCard, card_to_json
from frontends.boards import LAYOUTS, kind_of
from ipc.board import BoardWriter, board_layout
from ipc.child import ChildSetup, child_command, inherited_fds, write_setup
from ipc.directory import DirectorySnapshot, DirectoryTenant, DirectoryWriter, directory_layout
from ipc.doorbell import Doorbell
from ipc.heartbeat import HEARTBEATS_LAYOUT, HeartbeatLine, Heartbeats, HeartbeatState
from ipc.layout import create_segment
from ipc.run_directory import Ports, RunDirectory
from ipc.segment import Segment
from tests.support.control_plane.boards import CHILDREN, Fields, fill

TENANT_KEY = "hr-tenant-1"
WAIT_S = 60
CARD = ModelCard(
    name="smol",
    path="/nowhere",
    max_model_len=128,
    vocab_size=100,
    eos_token_ids=(0,),
    weights_bytes=0,
    created_s=0,
)


class AdminStage:
    """A run directory with everything in it; use as a context manager."""

    def __init__(self, directory: RunDirectory, state: Path) -> None:
        """Fill the directory; the audit log goes below `state`."""
        self.directory = directory
        self.state = state
        self.key = directory.write_admin_key()
        self.slots = {child: k for k, child in enumerate(("supervisor", *CHILDREN))}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cleanup = ExitStack()
        self._cleanup.callback(directory.remove)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cleanup.callback(self._listener.close)
        self.port: int = self._listener.getsockname()[1]
        directory.write_ports(Ports("127.0.0.1", 1, "127.0.0.1", self.port))
        self._heartbeats = create_segment(directory.heartbeats, HEARTBEATS_LAYOUT)
        self._boards = {child: self._create_board(child) for child in self.slots}
        self._publish_tenants()
        self._bell = Doorbell.create()
        self._cleanup.callback(self._bell.close)
        self._death = os.pipe()
        for fd in self._death:
            self._cleanup.callback(os.close, fd)

    def __enter__(self) -> "AdminStage":
        """Use the stage."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the workers and give everything back."""
        for index in range(MAX_ADMIN_WORKERS):
            self.kill_worker(index)
        self._cleanup.close()

    def publish(self, child: str, fields: Fields, now_ns: int) -> None:
        """Write the page and the heartbeat of a process that is not there."""
        writer = BoardWriter(self._boards[child], LAYOUTS[kind_of(child)], epoch=1)
        page: np.ndarray[tuple[int, ...], np.dtype[np.void]] = writer.page
        fill(page, fields)
        writer.publish(now_ns)
        line = HeartbeatLine(self._heartbeats, self.slots[child])
        line.stamp(HeartbeatState.IDLE, now_ns)
        line.serve(1)

    def serving_epoch(self, child: str) -> int:
        """Return the epoch in a worker's heartbeat line."""
        return Heartbeats(self._heartbeats).epoch(self.slots[child])

    def start_worker(self, index: int, epoch: int = 1) -> subprocess.Popen[bytes]:
        """Start a real admin worker."""
        child_id = f"admin.{index}"
        setup = ChildSetup(
            child_id=child_id,
            epoch=epoch,
            slot=self.slots[child_id],
            run_dir=str(self.directory.path),
            parent_pid=os.getpid(),
            peers=self.slots,
            fds={
                "admin": self._listener.fileno(),
                "death": self._death[0],
                "state": self._bell.fileno(),
            },
            config=msgspec.Raw(config_to_json(HeadraceConfig(name=self.directory.name))),
            model=msgspec.Raw(card_to_json(CARD)),
        )
        setup_fd = write_setup(setup)
        process = subprocess.Popen(
            child_command("frontends.admin", setup_fd),
            env={"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(self.state)},
            pass_fds=inherited_fds(setup, setup_fd),
            stderr=subprocess.PIPE,
        )
        os.close(setup_fd)
        self.processes[child_id] = process
        return process

    def kill_worker(self, index: int) -> None:
        """End a worker without a word, if it is there."""
        process = self.processes.pop(f"admin.{index}", None)
        if process is not None:
            process.kill()
            process.communicate()

    def stop_worker(self, index: int) -> tuple[int, str]:
        """Ask a worker to stop; return its exit code and what it said."""
        process = self.processes[f"admin.{index}"]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=WAIT_S)
        del self.processes[f"admin.{index}"]
        return process.returncode, said.decode()

    def _create_board(self, child: str) -> Segment:
        layout = board_layout(LAYOUTS[kind_of(child)])
        return create_segment(self.directory.board(child), layout)

    def _publish_tenants(self) -> None:
        segment = create_segment(self.directory.directory, directory_layout())
        tenant = hashlib.sha256(TENANT_KEY.encode()).hexdigest()
        DirectoryWriter(segment).publish(
            DirectorySnapshot(
                tenants=(DirectoryTenant(name="acme", key_sha256=(tenant,)),),
                admin_key_sha256=hashlib.sha256(self.key.encode()).hexdigest(),
            )
        )
