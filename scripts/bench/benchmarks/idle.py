"""Measure what an engine costs that has nothing to do: start time, CPU, memory, each by process."""

import argparse
import asyncio
import sys
import time
from typing import Any

from scripts.bench.harness import report
from scripts.bench.harness.client import Client
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import running_engine
from scripts.bench.harness.processes import Process

MIB = 2**20
BARS = (
    report.Bar("ready_s", "<=", 10, "s"),
    report.Bar("cpu_percent", "<=", 2, "% of a core"),
    report.Bar("pss_mib", "<=", 1800, "MiB"),
)


async def cpu_percent(processes: list[Process], seconds: float) -> dict[str, float]:
    """Return each process's share of one core over `seconds`."""
    start = time.perf_counter()
    before = [process.cpu_s() for process in processes]
    await asyncio.sleep(seconds)
    wall_s = time.perf_counter() - start
    used = zip(processes, before, strict=True)
    return {
        f"{process.kind}.{process.pid}": round(100 * (process.cpu_s() - cpu_s) / wall_s, 3)
        for process, cpu_s in used
    }


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Start an engine, let it answer once, leave it alone, and measure."""
    async with running_engine("idle", args.set) as engine:
        async with Client(engine.url) as client:
            body = {"model": await client.model(), "prompt": "Once", "max_tokens": 8}
            status, answer = await client.post("/v1/completions", body)
        if status != 200:
            raise RuntimeError(f"the engine does not answer: {status} {answer}")
        await asyncio.sleep(args.settle)
        processes = engine.processes()
        cpu = await cpu_percent(processes, args.seconds)
        pss = {f"{each.kind}.{each.pid}": each.pss_bytes() / MIB for each in processes}
        figures = {
            "ready_s": round(engine.ready_s, 2),
            "cpu_percent": round(sum(cpu.values()), 2),
            "pss_mib": round(sum(pss.values()), 1),
            "processes": len(processes),
            "cpu_percent_by_process": cpu,
            "pss_mib_by_process": {name: round(value, 1) for name, value in pss.items()},
        }
    return report.build("idle", figures, BARS, command=sys.argv[1:])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("idle", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--seconds", type=float, default=20.0, help="time over which CPU is measured")
    add("--settle", type=float, default=3.0, help="time left alone before that, seconds")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
