"""A `headrace top` in a pseudo-terminal of its own, whose output is read and thrown away."""

import errno
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from scripts.bench.harness.processes import Process, look_up

SETTLE_S = 4.0
END_S = 5.0


class Terminal:
    """A running dashboard; somebody must `drain` it, or it waits for its terminal."""

    def __init__(self, size: tuple[int, int], arguments: Sequence[str]) -> None:
        """Start `headrace top` with `arguments` in a terminal `size` cells wide and high."""
        self._file, other_end = pty.openpty()
        width, height = size
        fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        os.set_blocking(self._file, False)
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dashboard.cli", *arguments],
            stdin=other_end, stdout=other_end, stderr=other_end, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(other_end)

    @property
    def process(self) -> Process:
        """The dashboard's process."""
        process = look_up(self._child.pid)
        assert process is not None, "the dashboard has ended"
        return process

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._file, keys.encode())

    def drain(self, seconds: float) -> None:
        """Read and throw away what is drawn, for so long or until it ends; wake only for that."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0 and self._child.poll() is None:
            if select.select([self._file], [], [], left)[0] and not self._read():
                with suppress(subprocess.TimeoutExpired):
                    self._child.wait(left)

    def stop(self) -> None:
        """Let it cost nothing until `go_on`."""
        self._child.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it work again."""
        self._child.send_signal(signal.SIGCONT)

    def close(self) -> int:
        """End it, politely first; return its exit status."""
        self.go_on()
        self.type("\x03")
        self.drain(END_S)
        if self._child.poll() is None:
            self._child.kill()
        status = self._child.wait()
        os.close(self._file)
        return status

    def _read(self) -> bool:
        """Read all that is there; False = the other end is closed."""
        try:
            while os.read(self._file, 1 << 16):
                pass
        except OSError as error:
            return error.errno == errno.EAGAIN
        return False


@contextmanager
def dashboard(name: str, size: tuple[int, int], screen: str = "") -> Iterator[Terminal]:
    """Run a dashboard on a screen of the engine `name` until the block ends."""
    terminal = Terminal(size, ["--name", name])
    try:
        terminal.drain(SETTLE_S / 2)
        terminal.type(screen)
        terminal.drain(SETTLE_S / 2)
        yield terminal
    finally:
        terminal.close()
