"""The pieces of a recorded trace become one file that the simulator reads."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from core.policy.cost_model import StepWork
from core.scheduler.trace_log import COLUMNS
from core.simulation.this_machine import read_this_machine
from core.simulation.traces import read_trace
from core.terminal import CommandError
from frontends.cli.recorded_trace import MACHINE_FILE, Record, record_trace

ROWS = [
    (3_000_000_000, 9, 2, 4, 0, "a", "batch", "stopped", 10, 2_000_000, 5_000_000),
    (1_000_000_000, 7, 8, 8, 0, "b", "interactive", "queue_full_requests", 0, 0, 1_000),
    (2_500_000_000, 5, 1, 1, 4, "a", "standard", "length", 10, 1_500_000, 1_500_000),
]


class Engine:
    """Has some rows of which the first few are gone; a row more ends with each call."""

    def __init__(self, num_gone: int = 0, machine: Mapping[str, object] | None = None) -> None:
        self.num_gone = num_gone
        self.machine = machine
        self.num_calls = 0

    def ask(self, args: Mapping[str, object]) -> Record:
        self.num_calls += 1
        first = max(int(str(args.get("first", 0))), self.num_gone)
        limit = min(2, int(str(args.get("limit", 2))))  # at most two rows in an answer
        rows = [list(row) for row in ROWS[first : first + limit]]
        return {
            "rows": rows, "columns": list(COLUMNS), "first": first, "next": first + len(rows),
            "total": len(ROWS) + self.num_calls - 1, "machine": None if rows else self.machine,
        }  # fmt: skip


def test_a_recording_is_a_trace(tmp_path: Path) -> None:
    """In the order of arrival, from 0; what ends while it is read is left for the next time."""
    path, engine = tmp_path / "t.csv", Engine()
    recorded = record_trace(engine.ask, {}, path, tmp_path / "m.json")
    assert (recorded.num_requests, recorded.num_missed, recorded.machine) == (3, 0, "")
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == [0.0, 1.5, 2.0]
    assert trace.prompt_tokens.tolist() == [7, 5, 9]
    assert trace.max_tokens.tolist() == [8, 1, 4]
    assert trace.tenants == ("b", "a")
    assert path.read_text().splitlines()[1].endswith("queue_full_requests,,,0.001")


def test_the_machine_is_kept_for_the_simulator(tmp_path: Path) -> None:
    """Prices and scatter of the steps, the overhead between them, and the size of the cache."""
    machine = {
        "basis": [2e6, 1e4, 0.0, 1.0, 0.0], "sigma": 0.1,
        "overhead_us": 300.0, "num_kv_blocks": 100, "block_size": 32,
    }  # fmt: skip
    path = tmp_path / "cache" / MACHINE_FILE
    recorded = record_trace(Engine(machine=machine).ask, {}, tmp_path / "t.csv", path)
    assert recorded.machine == str(path)
    here = read_this_machine(path.parent)
    assert (here.kv_tokens, here.sigma, here.overhead_us) == (3200, 0.1, 300.0)
    assert here.duration_ns(StepWork(num_decodes=10, decode_context=100)) == 2_100_100


def test_rows_that_are_gone_are_counted(tmp_path: Path) -> None:
    """The engine keeps so many only."""
    recorded = record_trace(Engine(num_gone=1).ask, {}, tmp_path / "t.csv", tmp_path / "m")
    assert (recorded.num_requests, recorded.num_missed) == (2, 1)


@pytest.mark.parametrize(("limit", "written"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_the_limit_is_that_of_the_file(tmp_path: Path, limit: int, written: int) -> None:
    """However few rows are in one answer."""
    path = tmp_path / "t.csv"
    recorded = record_trace(Engine().ask, {"limit": limit}, path, tmp_path / "m")
    assert (recorded.num_requests, recorded.num_missed) == (written, 0)
    assert len(path.read_text().splitlines()) == 1 + written


def test_a_file_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    """And nothing is left of it."""
    with pytest.raises(CommandError, match="cannot write"):
        record_trace(Engine().ask, {}, tmp_path / "no" / "t.csv", tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
