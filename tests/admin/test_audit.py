"""The audit log: every line whole, bounded in size, and never in anybody's way."""

import json
import logging
import stat
from pathlib import Path

import pytest

from core.user_directories import state_directory
from frontends.admin.audit.log import MAX_LINE_BYTES, MAX_OLD_FILES, AuditLog


def log_into(directory: Path, max_file_bytes: int = 1 << 20) -> AuditLog:
    """Return a log whose clock stands still."""
    return AuditLog(directory, lambda: "2026-01-01T00:00:00.000+00:00", max_file_bytes)


def lines(path: Path) -> list[dict[str, object]]:
    """Return the records in a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_record_is_a_json_line_with_its_time(tmp_path: Path) -> None:
    """Who, what, and when come back as they went in; nobody else may read it."""
    directory = tmp_path / "state" / "headrace" / "x"
    log = log_into(directory)
    log.record({"actor": "ctl ü", "args": {"tenant": "acme"}})
    log.close()
    path = directory / "audit.jsonl"
    assert lines(path) == [
        {"time": "2026-01-01T00:00:00.000+00:00", "actor": "ctl ü", "args": {"tenant": "acme"}}
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_workers_share_one_file(tmp_path: Path) -> None:
    """Lines of several writers never mix."""
    logs = [log_into(tmp_path) for _ in range(2)]
    for number in range(200):
        logs[number % 2].record({"number": number, "padding": "x" * 500})
    for log in logs:
        log.close()
    assert sorted(int(str(r["number"])) for r in lines(tmp_path / "audit.jsonl")) == list(
        range(200)
    )


def test_files_are_rotated_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    """The log takes a bounded amount of disk, and the newest records are the ones kept."""
    log = log_into(tmp_path, max_file_bytes=1000)
    for number in range(200):
        log.record({"number": number, "padding": "x" * 100})
    log.record({"number": 200})
    log.close()
    files = sorted(tmp_path.glob("audit*.jsonl"))
    assert len(files) <= MAX_OLD_FILES + 1
    assert all(path.stat().st_size < 1300 for path in files)
    youngest = tmp_path / "audit.jsonl"
    newest = youngest if youngest.exists() else tmp_path / "audit.1.jsonl"
    assert lines(newest)[-1]["number"] == 200


def test_a_disk_that_takes_nothing_is_loud_and_harmless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Failures are counted and complained about; once the disk works again, records are written
    again."""
    place = tmp_path / "state"
    place.write_text("a file where a directory should be")
    log = log_into(place)
    with caplog.at_level(logging.ERROR):
        log.record({"number": 1})
        log.close()
    assert log.failures == 1
    assert "audit log" in caplog.text
    place.unlink()
    again = log_into(place)
    again.record({"number": 2})
    again.close()
    assert again.failures == 0
    assert [record["number"] for record in lines(place / "audit.jsonl")] == [2]


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """The log cannot be made to append to a file of somebody's choice."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "audit.jsonl").symlink_to(victim)
    log = log_into(tmp_path)
    log.record({"number": 1})
    log.close()
    assert log.failures == 1
    assert victim.read_text() == "untouched"


def test_a_line_is_bounded(tmp_path: Path) -> None:
    """A huge result is left out of its record, and the rest of it is kept."""
    log = log_into(tmp_path)
    log.record({"actor": "me", "command": "requests", "result": {"requests": ["x" * 100] * 10_000}})
    log.close()
    (record,) = lines(tmp_path / "audit.jsonl")
    assert record["actor"] == "me"
    assert record["truncated"] is True
    assert (tmp_path / "audit.jsonl").stat().st_size < MAX_LINE_BYTES


@pytest.mark.parametrize("depth", [300, 1000])
def test_arguments_that_json_cannot_say_are_left_out(tmp_path: Path, depth: int) -> None:
    """Whoever nests arguments deeper than they can be written stays in the log all the same."""
    nested: object = "x"
    for _ in range(depth):
        nested = [nested]
    log = log_into(tmp_path)
    log.record({"actor": "me", "command": "set", "args": {"value": nested}})
    log.close()
    (record,) = lines(tmp_path / "audit.jsonl")
    assert (record["actor"], record["command"]) == ("me", "set")
    assert record["truncated"] is True


def test_the_state_directory_follows_xdg() -> None:
    """XDG_STATE_HOME if it is set, else below the home directory."""
    assert state_directory({"XDG_STATE_HOME": "/s"}) == Path("/s/headrace")
    assert state_directory({"HOME": "/h"}) == Path("/h/.local/state/headrace")
