"""The command line as a user runs it: a process of its own, without a terminal."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

HEADRACE = (sys.executable, "-P", "-m", "frontends.cli.main")
ESCAPE = "\x1b"


@dataclass(frozen=True)
class Run:
    """What a run left: exit code, data, talk."""

    code: int
    out: str
    err: str


def headrace(*arguments: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Run:
    """Run `headrace` with these arguments to its end."""
    done = subprocess.run(
        [*HEADRACE, *arguments],
        env={**os.environ, **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def assert_one_line(run: Run, code: int) -> None:
    """Check that a run failed as the world's faults do: one line, no traceback, nothing on
    stdout."""
    assert run.code == code, run
    assert run.out == ""
    assert run.err.startswith("error: ")
    assert run.err.count("\n") == 1, run.err
    assert ESCAPE not in run.err
