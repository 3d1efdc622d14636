"""The command line as a user runs it: a process of its own, without a terminal."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from frontends.cli.main import main

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


def inside(*arguments: str) -> Run:
    """Run a verb inside this process, which is quick; not for verbs that become another process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return Run(code, out.getvalue(), err.getvalue())


def assert_one_line(run: Run, code: int) -> None:
    """Check that a run failed as the world's faults do: one line, no traceback, nothing on
    stdout."""
    assert run.code == code, run
    assert run.out == ""
    assert run.err.startswith("error: ")
    assert run.err.count("\n") == 1, run.err
    assert ESCAPE not in run.err
