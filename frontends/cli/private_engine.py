"""An engine for one command: started under a name of its own, gone when the command ends.

Owns: its start, the wait until it is ready, and its end. Never knows: what is asked of it.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from core.terminal import CommandError, ExitCode
from frontends.cli.api_client import ApiClient
from ipc.errors import RunDirectoryError
from ipc.run_directory import RunDirectory

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.05
PREFIX = "generate-"
MODULE = "frontends.cli.bound_engine"


@contextmanager
def private_engine(arguments: list[str], status: Callable[[str], None]) -> Iterator[ApiClient]:
    """Start an engine with these arguments of `serve`, give a client to it, end it.

    Raises CommandError with the engine's own last word if it does not start.
    """
    name = f"{PREFIX}{os.getpid()}"
    private = ["--set", f'name="{name}"', "--set", "http.port=0", "--set", "admin.port=0"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(os.getpid()), *arguments, *private],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield wait_until_ready(process, name, log.fileno(), status)
        finally:
            stop(process)


def wait_until_ready(
    process: subprocess.Popen[bytes], name: str, log_fd: int, status: Callable[[str], None]
) -> ApiClient:
    """Return a client once the engine takes requests."""
    started_s = time.monotonic()
    while (waited_s := time.monotonic() - started_s) < START_TIMEOUT_S:
        status(f"starting an engine for this prompt … {waited_s:.0f} s")
        code = process.poll()
        if code is not None:
            raise CommandError(last_line(log_fd), exit_code(code))
        client = client_of(name)
        if client is not None and client.is_ready():
            return client
        time.sleep(POLL_S)
    raise CommandError(f"the engine was not ready after {START_TIMEOUT_S:.0f} s")


def client_of(name: str, base: Path | None = None) -> ApiClient | None:
    """Return a client to the running engine `name`, or None if there is none (yet)."""
    try:
        ports = RunDirectory.find(name, base).read_ports()
    except RunDirectoryError:
        return None
    return ApiClient(ports.http_host, ports.http_port, os.environ.get("HEADRACE_API_KEY", ""))


def last_line(log_fd: int) -> str:
    """Return the last line of the engine's log, without `error:`."""
    text = os.pread(log_fd, 1 << 20, 0).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("error:").strip() if lines else "the engine did not start"


def exit_code(code: int) -> ExitCode:
    """Return our exit code for the engine's."""
    return ExitCode.USAGE if code == ExitCode.USAGE else ExitCode.FAILED


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the engine, politely within a bound."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue
