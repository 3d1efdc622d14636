"""`scripts/mutants`: is the property suite able to notice a fault?

Each fault of `scripts._faults` is planted in a copy of the tree, and the property test that names
it must fail there. First every named test must pass in an unchanged copy; from that run comes how
close to the bound of P2 the widest gap came. A test that cannot be collected, or that fails for
lack of the planted text, kills nothing.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from xml.etree import ElementTree

from scripts._faults import CLASSES_APART, FAULTS, TENANTS_APART, Fault
from scripts.bench.harness import report
from scripts.bench.harness.report import ROOT, Bar

COPIED = ("core", "ipc", "frontends", "configs", "scripts", "tests")
TIMEOUT_S, UNCHANGED_TIMEOUT_S = 600, 1800
MIN_FAULTS = 25
MIN_WIDTH = 0.5  # of the bound of P2, somewhere: a bound never approached was not tested
WIDTH = "width/bound"
MEASURES = "measures.xml"
PASSED, FAILED = 0, 1  # pytest's exit statuses
BOUNDS = {  # level → test of P2
    "tenants": TENANTS_APART.partition("::")[2],
    "classes": CLASSES_APART.partition("::")[2],
}


class Fate(StrEnum):
    """What became of a fault."""

    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "broken"  # the test could not be run


@dataclass(frozen=True, slots=True)
class Tree:
    """A copy of the project in which faults are planted, one after the other."""

    root: Path

    @classmethod
    def copied(cls, root: Path) -> "Tree":
        """Copy what tests need, as it is in the working tree."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *COPIED,
             "pyproject.toml"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, root / name)
        return cls(root)

    def passes(self, *tests: str, timeout_s: int = TIMEOUT_S) -> int:
        """Return pytest's exit status for some tests; what they measure is in `measured`."""
        command = [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
            "-o", "junit_family=xunit1", f"--junitxml={self.root / MEASURES}", *tests,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=self.root, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return FAILED  # a fault that hangs the engine is noticed too
        return done.returncode

    def measured(self) -> dict[str, float]:
        """Return what the last run noted as WIDTH, by the name of the test."""
        return {
            str(case.get("name")): round(float(str(noted.get("value"))), 3)
            for case in ElementTree.parse(self.root / MEASURES).iter("testcase")
            for noted in case.iter("property")
            if noted.get("name") == WIDTH
        }

    def failed(self) -> list[str]:
        """Return the names of the tests that failed in the last run, if it came to its end."""
        if not (self.root / MEASURES).exists():
            return []
        cases = ElementTree.parse(self.root / MEASURES).iter("testcase")
        return [str(case.get("name")) for case in cases if case.find("failure") is not None]

    def fate(self, fault: Fault) -> Fate:
        """Plant `fault`, run its test, and take the fault out again."""
        path = self.root / fault.path
        source = path.read_text()
        path.write_text(fault.planted(source))
        try:
            status = self.passes(fault.test)
        finally:
            path.write_text(source)
        return {PASSED: Fate.SURVIVED, FAILED: Fate.KILLED}.get(status, Fate.BROKEN)


def chosen(text: str | None) -> list[Fault]:
    """Return the faults named in `text`, or all."""
    wanted = set(text.split(",")) if text else {fault.name for fault in FAULTS}
    unknown = wanted - {fault.name for fault in FAULTS}
    if unknown:
        raise ValueError(f"no fault is called {', '.join(sorted(unknown))}")
    return [fault for fault in FAULTS if fault.name in wanted]


def in_parallel(
    trees: Iterable[Tree], faults: Iterable[Fault], jobs: int
) -> Iterator[tuple[Fault, Fate]]:
    """Yield each fault's fate, in order; a tree is used by one fault at a time."""
    free: SimpleQueue[Tree] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def judge(fault: Fault) -> tuple[Fault, Fate]:
        tree = free.get()
        try:
            return fault, tree.fate(fault)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(judge, faults)


def check_tests(tree: Tree, faults: Iterable[Fault]) -> None:
    """Raise RuntimeError if a test fails without any fault; those of P2 tell their figure."""
    tests = list(dict.fromkeys([*(fault.test for fault in faults), TENANTS_APART, CLASSES_APART]))
    print(f"unchanged: {len(tests)} tests", file=sys.stderr, flush=True)
    if tree.passes(*tests, timeout_s=UNCHANGED_TIMEOUT_S) != PASSED:
        raise RuntimeError(f"fails without any fault: {', '.join(tree.failed()) or 'a test'}")


def bars(figures: Mapping[str, Any], is_whole: bool) -> list[Bar]:
    """Return the limits: every fault killed, and, of the whole list, enough of them."""
    limits = [Bar("survivors", "<=", 0), Bar("broken", "<=", 0)]
    if not is_whole:
        return limits
    widths = [Bar(f"widest.{level}", ">=", MIN_WIDTH, "of the bound") for level in BOUNDS]
    return [*limits, Bar("killed", ">=", MIN_FAULTS), *widths]


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Plant all chosen faults and return the report."""
    faults = chosen(args.only)
    with tempfile.TemporaryDirectory(prefix="headrace-mutants-") as folder:
        trees = [Tree.copied(Path(folder) / str(index)) for index in range(args.jobs)]
        check_tests(trees[0], faults)
        widths = trees[0].measured()
        fates: dict[str, Any] = {}
        for fault, fate in in_parallel(trees, faults, args.jobs):
            print(f"{fate:<9} {fault.property} {fault.name}", file=sys.stderr, flush=True)
            fates[fault.name] = {"fate": str(fate), "property": fault.property, "test": fault.test}
    count = [entry["fate"] for entry in fates.values()].count
    figures = {
        "killed": count(Fate.KILLED),
        "survivors": count(Fate.SURVIVED),
        "broken": count(Fate.BROKEN),
        "by_property": dict(sorted(Counter(fault.property for fault in faults).items())),
        "widest": {level: widths[name] for level, name in BOUNDS.items() if name in widths},
        "faults": fates,
    }
    return report.build("mutants", figures, bars(figures, args.only is None))


def main() -> int:
    """Run the command line; the exit status is 1 if a fault survives."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME,…", help="these faults (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (default: 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    return report.run("mutants", lambda: run(args), args.json)


if __name__ == "__main__":
    sys.exit(main())
