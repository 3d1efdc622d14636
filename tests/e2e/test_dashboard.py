"""`headrace top` beside a real engine: as text, as JSON, recorded and shown again, and stopped."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from scripts.bench.benchmarks.dashboard.terminal import Terminal
from tests.support.processes.commands import done
from tests.support.processes.engine import Engine, Json, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SMALL = (80, 24)
RECORD_S = 2.0
DRAIN_S = 0.1


def top(*arguments: str) -> str:
    """Return what `headrace top` prints, which must succeed and complain of nothing."""
    command = [sys.executable, "-P", "-m", "frontends.cli.main", "top", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def look_at_live(engine: Engine, *how: str) -> str:
    """Return what `headrace top` shows of an engine whose scheduler is not stale just then: on a
    busy machine it may be silent for longer than it takes to be called so.
    """
    looks: list[str] = []

    def is_live() -> bool:
        looks.append(top("--name", engine.name, *how))
        return "stale" not in looks[-1]

    wait_until(is_live, "a look at a live engine")
    return looks[-1]


def tenant_of(document: Json) -> Json:
    """Return the only tenant that has asked for anything."""
    (row,) = [each for each in document["tenants"] if each["requests"]]
    found: Json = row
    return found


def test_one_look_shows_what_the_engine_has_done(simulated_engine: Engine) -> None:
    """As text in 80 columns, and as JSON with the engine's own counts."""
    simulated_engine.client().complete("hello", max_tokens=5)
    simulated_engine.wait_for_pages()
    counted = int(simulated_engine.scheduler_page().page["generated_tokens"])
    lines = look_at_live(simulated_engine, "--once").split("\n")
    assert f"{simulated_engine.name} live" in lines[0]
    assert max(map(len, lines)) <= SMALL[0]
    assert any(line.split()[:1] == ["default"] for line in lines)
    document = json.loads(look_at_live(simulated_engine, "--once", "--json"))
    assert document["liveness"] == "live"
    assert tenant_of(document)["generated_tokens"] == counted >= 5
    assert {each["child"] for each in document["processes"]} == set(simulated_engine.children())


def test_what_was_recorded_is_shown_again(simulated_engine: Engine, tmp_path: Path) -> None:
    """A dashboard in a terminal writes the file; the engine is not needed to look at it."""
    path = tmp_path / "seen.jsonl"
    simulated_engine.client().complete("hello", max_tokens=5)
    simulated_engine.wait_for_pages()
    terminal = Terminal(SMALL, ["--name", simulated_engine.name, "--record", str(path)])

    def has_frames() -> bool:
        terminal.drain(DRAIN_S)  # or it waits for its terminal and writes nothing
        return path.exists() and path.read_bytes().count(b"\n") > 3

    with closing(terminal):
        wait_until(has_frames, "a few frames")
    document = json.loads(top("--replay", str(path), "--json"))
    assert document["name"] == simulated_engine.name
    assert tenant_of(document)["generated_tokens"] >= 5
    assert simulated_engine.name in top("--replay", str(path), "--once").split("\n")[0]


def test_an_engine_does_not_notice_a_dashboard_that_is_stopped(simulated_engine: Engine) -> None:
    """It answers, and no process of it is restarted."""
    before = simulated_engine.children()
    terminal = Terminal(SMALL, ["--name", simulated_engine.name])
    with closing(terminal):
        terminal.drain(RECORD_S)
        terminal.stop()
        for _ in range(3):
            simulated_engine.client().complete("hello", max_tokens=5)
        assert simulated_engine.children() == before


def test_a_command_is_in_the_audit_log_with_what_it_changed(simulated_engine: Engine) -> None:
    """Looks are not; whoever asks may read it a moment later."""
    weight = {"path": "tenants.default.weight", "value": "3"}
    done(simulated_engine, "set", **weight)
    done(simulated_engine, "tenants")

    def changes() -> list[Json]:
        found: list[Json] = done(simulated_engine, "audit", limit=5)["commands"]
        return found

    wait_until(lambda: bool(changes()) and "result" in changes()[-1], "the record")
    assert {each["command"] for each in changes()} == {"set"}
    assert changes()[-1]["args"] == weight
    assert changes()[-1]["result"]["after"] == 3.0
