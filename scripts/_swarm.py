"""`scripts/swarm`: the seeded properties with many more seeds than the test suite can afford.

A property takes part if its module in tests/properties has a function `run_seed(seed)`, which
raises if the property does not hold. A seed that fails is written to
tests/properties/regressions.txt, which the test suite runs from then on, and its replay command is
printed.
"""

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from tests.properties.regressions import PROPERTIES, REGRESSIONS, Regression, property_names

RunSeed = Callable[[int], object]


def fault_of(name: str, seed: int) -> str | None:
    """Run one seed of a property; return the traceback if it fails."""
    run_seed: RunSeed = importlib.import_module(f"{PROPERTIES}.{name}").run_seed
    try:
        run_seed(seed)
    except Exception:  # noqa: BLE001 - whatever a property raises is what we look for
        return traceback.format_exc()
    return None


def faults(names: list[str], seeds: range, jobs: int) -> Iterator[tuple[Regression, str]]:
    """Yield each failing seed with its traceback."""
    with ProcessPoolExecutor(jobs) as pool:
        for name in names:
            begun_s = time.monotonic()
            found = 0
            results = pool.map(fault_of, repeat(name), seeds, chunksize=4)
            for seed, fault in zip(seeds, results, strict=True):
                if fault is not None:
                    found += 1
                    yield Regression(name, seed), fault
            spent_s = time.monotonic() - begun_s
            print(f"{name}: {len(seeds)} seeds, {found} failed, {spent_s:.0f} s", flush=True)


def main() -> int:
    """Run the command line; the exit status is 1 if a seed fails."""
    parser = argparse.ArgumentParser(prog="scripts/swarm", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="of each property (1000)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first one (0)")
    parser.add_argument("--only", metavar="PROPERTY,…", help="these properties (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    args = parser.parse_args()
    known = property_names()
    names = args.only.split(",") if args.only else known
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    failed = 0
    for regression, fault in faults(names, range(args.first, args.first + args.seeds), args.jobs):
        failed += 1
        REGRESSIONS.add(regression)
        print(f"{fault}\nreplay: {regression.command}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
