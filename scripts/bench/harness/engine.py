"""An engine of the benchmark's own: start it, look at its processes, end it, find what it left.

Owns: one `headrace serve` on a free port, its log, its name. It is ended with the context it was
started in, whatever happens there.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ipc.base_directory import default_base
from ipc.board import BoardReader
from ipc.errors import EngineNotFoundError, RunDirectoryError
from ipc.run_directory import RunDirectory
from ipc.segment import Segment
from scripts.bench.harness.client import Client
from scripts.bench.harness.processes import Process, family

READY_S = 600  # the first start of a machine builds kernels
STOP_S = 60
POLL_S = 0.02


async def wait_until(
    condition: Callable[[], bool], within_s: float, every_s: float = POLL_S
) -> bool:
    """Wait for something outside this process; return whether it came within the time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(every_s)
    return True


@dataclass(slots=True)
class Engine:
    """A running engine."""

    name: str
    settings: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] = field(repr=False)
    url: str = ""
    port: int = 0
    ready_s: float = 0.0  # from the command to the first `ready`

    def processes(self) -> list[Process]:
        """Return the supervisor and all below it."""
        return family(self.process.pid)

    def children(self, kind: str) -> list[Process]:
        """Return the processes of one kind: `executor`, `scheduler`, …"""
        return [process for process in self.processes() if process.kind == kind]

    def run_directory(self) -> RunDirectory:
        """Return its run directory; raises EngineNotFoundError."""
        return RunDirectory.find(self.name)

    def page(self, child_id: str, layout: np.dtype[np.void]) -> BoardReader:
        """Return a reader of the page of a child; raises IpcError if the engine is not there."""
        path = self.run_directory().board(child_id)
        return BoardReader(Segment.open(path, readonly=True), layout)

    def admin(self) -> Client:
        """Return a client of its admin port, with its key."""
        directory = self.run_directory()
        ports = directory.read_ports()
        url = f"http://{ports.admin_host}:{ports.admin_port}"
        return Client(url, directory.read_admin_key())

    async def wait_ready(self, within_s: float = READY_S) -> None:
        """Return when it serves; raises RuntimeError with the end of its log otherwise."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(
                    f"the engine ended with {self.process.returncode}: {self.tail()}"
                )
            if await self._is_ready():
                return
            await asyncio.sleep(POLL_S)
        raise RuntimeError(f"the engine was not ready within {within_s} s: {self.tail()}")

    async def _is_ready(self) -> bool:
        if not self.url:
            try:
                ports = self.run_directory().read_ports()
            except (EngineNotFoundError, RunDirectoryError):
                return False
            self.port = ports.http_port
            self.url = f"http://{ports.http_host}:{ports.http_port}"
        async with Client(self.url) as client:
            status, _ = await client.get("/health/ready")
        return status == 200

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-1500:]

    async def stop(self) -> int:
        """End it by SIGTERM, by SIGKILL if that takes too long; return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self.process.wait, STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return await asyncio.to_thread(self.process.wait, STOP_S)

    def leftovers(self, before: Sequence[Process]) -> list[str]:
        """Return what is still there of a dead engine: processes, its directory, its port."""
        found = [f"process {each.kind} {each.pid}" for each in before if each.is_alive()]
        if (default_base() / self.name).exists():
            found.append(f"directory {default_base() / self.name}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                found.append(f"port {self.port}")
        return found


@asynccontextmanager
async def running_engine(
    kind: str, settings: Sequence[str], config: Path | None = None
) -> AsyncIterator[Engine]:
    """Start an engine with a configuration file, if any, and `--set` settings; wait until it
    serves, and end it with the context.

    A SIGTERM to us cancels the task, so that the engine ends then too.
    """
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        engine = launch(
            f"bench-{kind}-{os.getpid()}", settings, Path(folder) / "engine.log", config
        )
        try:
            start = time.monotonic()
            await engine.wait_ready()
            engine.ready_s = time.monotonic() - start
            yield engine
        finally:
            await engine.stop()


def launch(name: str, settings: Sequence[str], log: Path, config: Path | None = None) -> Engine:
    """Start `headrace serve` in the background, its output in `log` and its state beside it."""
    command = [sys.executable, "-P", "-m", "frontends.cli.main", "serve", "--name", name]
    command += ["--port", "0", *(word for each in settings for word in ("--set", each))]
    command += ["--config", str(config)] if config else []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["XDG_STATE_HOME"] = str(log.parent / "state")
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
    return Engine(name, tuple(settings), log, process)
