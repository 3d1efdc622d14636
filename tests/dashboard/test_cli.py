"""`headrace top` as a command: text, JSON, exit codes, and what it loads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.keymap import SCREENS
from tests.support.processes.cli import assert_one_line, headrace

FORBIDDEN = {"core", "frontends", "torch", "triton", "numba", "starlette", "uvicorn"}
pytestmark = pytest.mark.slow


def test_once_prints_the_overview_and_the_tenants() -> None:
    """Without colour in a pipe, and with no engine needed for a demonstration."""
    run = headrace("top", "--demo", "--once")
    assert (run.code, run.err) == (0, "")
    assert "tok/s" in run.out
    assert "interactive" in run.out
    assert "globex" in run.out
    assert "\x1b" not in run.out


def test_ascii_prints_ascii() -> None:
    """Nothing else, whatever is shown."""
    run = headrace("top", "--demo", "64", "--once", "--ascii")
    assert run.code == 0
    assert run.out.isascii()
    assert "monolith-4" in run.out


def test_json_is_one_document() -> None:
    """Fields by name, rates beside them."""
    run = headrace("top", "--demo", "--json", "--seed", "7")
    found = json.loads(run.out)
    assert found["liveness"] == "live"
    assert len(found["tenants"]) == 12
    assert found["lately"]["steps"] > 0


@pytest.mark.parametrize(
    "arguments",
    [["--demo", "0"], ["--demo", "many"], ["--hertz", "99"], ["--demo", "--replay", "x"],
     ["--explode"], ["--demo"], ["--once", "--name", "a/b"]],
)  # fmt: skip
def test_wrong_usage_is_one_line(arguments: list[str]) -> None:
    """So is a terminal that is none, and a name that no engine can have."""
    assert_one_line(headrace("top", *arguments), 2)


def test_an_engine_that_does_not_run_is_exit_code_3() -> None:
    """For scripts that look once."""
    assert_one_line(headrace("top", "--once", "--name", "nobody-has-this"), 3)


def test_a_recording_that_is_none_is_exit_code_1(tmp_path: Path) -> None:
    """The line names the file."""
    run = headrace("top", "--once", "--replay", str(tmp_path / "missing"))
    assert_one_line(run, 1)
    assert "missing" in run.err


def test_the_dashboard_loads_neither_engine_nor_frontends() -> None:
    """Nor torch, nor a web server; imports hidden in functions are found too."""
    code = "import json, sys, dashboard.cli; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert {"dashboard", "ipc", "textual"} <= loaded
    assert loaded & FORBIDDEN == set()


def test_every_screen_and_key_is_in_the_documentation() -> None:
    """Whoever reads docs/dashboard.md knows them all."""
    text = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text()
    assert [name for name in SCREENS if f"| {name} |" not in text] == []
