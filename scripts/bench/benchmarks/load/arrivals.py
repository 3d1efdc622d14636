"""Arrival plans of open-loop loads: a Poisson process, or a CSV file of recorded traffic."""

import csv
import gzip
import random
from dataclasses import dataclass
from itertools import islice
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request; `at_s` counts from the start. Empty tenant or class: the server's default."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    traffic_class: str = ""


def poisson(
    rate: float, duration_s: float, prompt_tokens: int, output_tokens: int, seed: int = 1
) -> list[Arrival]:
    """Return arrivals at `rate` a second over `duration_s` seconds; at least one."""
    source = random.Random(seed)
    arrivals, now = [Arrival(0.0, prompt_tokens, output_tokens)], 0.0
    while (now := now + source.expovariate(rate)) < duration_s:
        arrivals.append(Arrival(now, prompt_tokens, output_tokens))
    return arrivals


def read_trace(
    path: str, scale: float, limit: int = 0, max_tokens: int = 2**31
) -> tuple[list[Arrival], int]:
    """Return the arrivals of a CSV file (or .csv.gz), `scale` times as fast, and how many were cut.

    A request longer than `max_tokens` is cut to it, its output to a quarter of it at least.
    """
    read = gzip.decompress if path.endswith(".gz") else bytes
    lines = read(Path(path).read_bytes()).decode().splitlines()
    rows = list(islice(csv.DictReader(lines), limit or None))
    if not rows:
        raise OSError(f"{path} has no rows")
    arrivals, num_cut = [], 0
    for row in rows:
        prompt, output = max(1, int(row["prompt_tokens"])), max(1, int(row["output_tokens"]))
        if prompt + output > max_tokens:
            num_cut += 1
            output = min(output, max(max_tokens // 4, max_tokens - prompt))
            prompt = min(prompt, max_tokens - output)
        arrivals.append(
            Arrival(
                float(row["arrival_s"]) / scale,
                prompt,
                output,
                row.get("tenant") or "",
                row.get("class") or "",
            )
        )
    return arrivals, num_cut
