"""Measure what `headrace top` costs: CPU of its process while every tenant changes at every look.

The engine is made of pages written by hand, 20 times a second, so that no scheduler shares the
cores; the dashboard runs in a pseudo-terminal whose output is read and thrown away.
"""

import argparse
import fcntl
import os
import pty
import struct
import sys
import termios
import threading
import time
from typing import Any

import numpy as np

from ipc.base_directory import default_base
from scripts.bench import _report as report
from scripts.bench._processes import look_up
from tests.support.run_directory_stage import EngineOnPaper

NAME = "bench-dashboard"
PUBLISH_S = 0.05
SETTLE_S = 4.0
SIZES = ((80, 24), (120, 40))
BARS = tuple(report.Bar(f"cpu_percent_{w}x{h}", "<=", 3, "% of a core") for w, h in SIZES)


def write_pages(engine: EngineOnPaper, tenants: int, done: threading.Event) -> None:
    """Publish other numbers for every tenant until `done`."""
    random = np.random.default_rng(1)
    names = [{"name": b"tenant-%d" % index, "weight": 1.0} for index in range(tenants)]
    engine.publish(
        time.monotonic_ns(), "scheduler", num_tenants=tenants, num_replicas=1, tenants=names,
        replicas=[{"epoch": 1, "num_blocks": 4096}],
    )  # fmt: skip
    while not done.wait(PUBLISH_S):
        rows = [
            {"num_waiting": waiting, "num_running": waiting % 9, "held_blocks": 20 * waiting,
             "share_used": waiting / 2000, "share_due": 1 / tenants, "generated_tokens": total}
            for waiting, total in zip(
                random.integers(0, 50, tenants).tolist(),
                np.cumsum(random.integers(1, 9, tenants)).tolist(),
                strict=True,
            )
        ]  # fmt: skip
        now_ns = time.monotonic_ns()
        engine.publish(now_ns, "scheduler", tenants=rows)
        engine.beat(now_ns)


def cpu_percent(size: tuple[int, int], seconds: float, screen: str) -> float:
    """Return the share of a core of a dashboard in a terminal of this size."""
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-P", "-m", "dashboard.cli", "--name", NAME]
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, command)
    width, height = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    drain(terminal, SETTLE_S / 2)
    os.write(terminal, screen.encode())
    drain(terminal, SETTLE_S / 2)
    process = look_up(pid)
    assert process is not None, "the dashboard has ended"
    before_s, start = process.cpu_s(), time.perf_counter()
    drain(terminal, seconds)
    percent = 100 * (process.cpu_s() - before_s) / (time.perf_counter() - start)
    os.write(terminal, b"q")
    drain(terminal, 1.0)
    os.waitpid(pid, 0)
    os.close(terminal)
    return round(percent, 2)


def drain(terminal: int, seconds: float) -> None:
    """Read and throw away what is drawn."""
    end = time.perf_counter() + seconds
    os.set_blocking(terminal, False)
    while time.perf_counter() < end:
        try:
            os.read(terminal, 1 << 16)
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:  # the other end is closed
            return


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure both sizes."""
    engine = EngineOnPaper(default_base(), NAME, time.monotonic_ns())
    done = threading.Event()
    writer = threading.Thread(target=write_pages, args=(engine, args.tenants, done))
    writer.start()
    try:
        figures: dict[str, Any] = {
            f"cpu_percent_{size[0]}x{size[1]}": cpu_percent(size, args.seconds, args.screen)
            for size in SIZES
        }
    finally:
        done.set()
        writer.join()
        engine.directory.remove()
    return report.build("dashboard", figures, BARS, command=sys.argv[1:])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = argparse.ArgumentParser(prog="scripts/bench/dashboard", description=__doc__)
    add = parse.add_argument
    add("--tenants", type=int, default=64, help="tenants that change (default: 64)")
    add("--seconds", type=float, default=20.0, help="time over which CPU is measured")
    add("--screen", choices=list("1245"), default="2", help="key of the screen (default: tenants)")
    add("--json", action="store_true", help="one JSON object on stdout instead of a table")
    return parse


def main() -> int:
    """Run the command line; the exit status is 1 if a bar fails, 2 if nothing could be measured."""
    args = parser().parse_args()
    return report.run("dashboard", lambda: run(args), args.json)


if __name__ == "__main__":
    sys.exit(main())
