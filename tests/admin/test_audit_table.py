"""The audit table: each command of the log is in it exactly once, whatever happens meanwhile."""

import itertools
import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from core.errors import StateError
from core.state_database import FILE_NAME, Connection, open_to_write
from frontends.admin.audit import lines as audit_lines
from frontends.admin.audit import table as audit_table
from frontends.admin.audit.log import AuditLog, audit_path, log_files
from frontends.admin.audit.table import Question, answer, answer_from_log, catch_up, tenant_of

TIME = "2026-11-30T03:00:{:06.3f}+00:00"
ALL = Question(limit=10_000)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Connection]:
    """Give the connection of the table's writer."""
    with closing(open_to_write(tmp_path)) as connection:
        yield connection


def change(number: int, **more: object) -> dict[str, object]:
    """Return the record of a change, told apart by its number."""
    return {"time": TIME.format(number / 1000), "command": "pause", "step": number, **more}


def append(path: Path, *records: dict[str, object]) -> None:
    """Append records as a worker does."""
    with path.open("ab") as file:
        file.write(b"".join(json.dumps(record).encode() + b"\n" for record in records))


def steps(records: list[audit_lines.Record]) -> list[object]:
    """Return the numbers of changes."""
    return [record["step"] for record in records]


def in_table(connection: Connection) -> list[int]:
    """Return the numbers of the changes in the table alone."""
    rows = connection.execute("SELECT record FROM audit ORDER BY time").fetchall()
    return [json.loads(record)["step"] for (record,) in rows]


def test_changes_are_in_the_answer_before_and_after_they_are_in_the_table(
    table: Connection, tmp_path: Path
) -> None:
    """The table, and what the log has beyond it; nothing twice."""
    append(audit_path(tmp_path), change(1), change(2))
    assert (steps(answer(tmp_path, ALL)[0]), in_table(table)) == ([1, 2], [])
    catch_up(table, tmp_path)
    assert in_table(table) == [1, 2]
    append(audit_path(tmp_path), change(3))
    commands, is_complete = answer(tmp_path, ALL)
    assert (steps(commands), is_complete) == ([1, 2, 3], True)


def test_looks_are_in_the_log_alone(table: Connection, tmp_path: Path) -> None:
    """A dashboard must not push out the changes; callers without the key are told."""
    refusal = {"command": "status", "code": "forbidden", "refusals": 3, "step": 9}
    append(audit_path(tmp_path), {"command": "status"}, change(1), refusal)
    catch_up(table, tmp_path)
    assert sorted(in_table(table)) == [1, 9]
    assert sorted(map(str, steps(answer(tmp_path, ALL)[0]))) == ["1", "9"]


def test_no_key_or_digest_gets_into_the_table(table: Connection, tmp_path: Path) -> None:
    """The rest of the record does."""
    args = {"tenant": "acme", "digest": "d" * 64}
    append(audit_path(tmp_path), change(1, command="add-tenant", args=args))
    catch_up(table, tmp_path)
    ((record,),) = table.execute("SELECT record FROM audit").fetchall()
    assert json.loads(record)["args"] == {"tenant": "acme"}
    assert "d" * 64 not in repr(answer(tmp_path, ALL))


def test_a_line_that_is_being_written_waits_until_it_is_whole(
    table: Connection, tmp_path: Path
) -> None:
    """Also the first of a file; and what a full disk has cut costs one line, not those behind."""
    line = json.dumps(change(1)).encode() + b"\n"
    for half in (line[:20], line[20:]):
        with audit_path(tmp_path).open("ab") as file:
            file.write(half)
        catch_up(table, tmp_path)
    with audit_path(tmp_path).open("ab") as file:
        file.write(line[:20] + b"\n")
    append(audit_path(tmp_path), change(2))
    catch_up(table, tmp_path)
    assert in_table(table) == [1, 2]


def test_a_rotated_file_is_read_on(table: Connection, tmp_path: Path) -> None:
    """Where it was left, also what a worker appends to it that had it open when it was renamed."""
    path = audit_path(tmp_path)
    append(path, change(1), change(2))
    catch_up(table, tmp_path)
    append(path, change(3))
    old = log_files(tmp_path)[-2]
    path.rename(old)
    append(path, change(4))
    catch_up(table, tmp_path)
    append(old, change(5))
    catch_up(table, tmp_path)
    assert in_table(table) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_writer_that_is_killed_at_any_statement_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    """Rows and position are one transaction; seeds are printed on failure."""
    for seed in range(20):
        choose = random.Random(seed)
        directory = tmp_path / str(seed)
        directory.mkdir()
        number = 0
        for _ in range(12):
            for _ in range(choose.randrange(4)):
                number += 1
                append(audit_path(directory), change(number, args={"value": "x" * number}))
            if choose.random() < 0.2 and audit_path(directory).exists():
                shift(directory)
            killed_after = choose.randrange(12)
            with closing(open_to_write(directory)) as connection:
                stop_after(connection, killed_after)
                with suppress(sqlite3.OperationalError):
                    catch_up(connection, directory)
        with closing(open_to_write(directory)) as connection:
            catch_up(connection, directory)
            assert in_table(connection) == list(range(1, number + 1)), f"seed {seed}"


def shift(directory: Path) -> None:
    """Rotate the log, which is never long enough here to lose its oldest file."""
    files = log_files(directory)
    if files[0].exists():
        return
    for older, younger in itertools.pairwise(files):
        if younger.exists():
            younger.rename(older)


def stop_after(connection: Connection, count: int) -> None:
    """Interrupt the connection's statements from the `count`-th on, as a kill would."""
    begun = iter(range(count))

    def is_over() -> int:
        return int(next(begun, None) is None)

    connection.set_progress_handler(is_over, 10)


def test_what_is_asked_for_is_told(table: Connection, tmp_path: Path) -> None:
    """Since a time, of a tenant, of a command, the newest; from table and log alike."""
    records = [
        change(1, args={"tenant": "acme"}),
        change(2, command="set", args={"path": "tenants.acme.weight", "value": "3"}),
        change(3, command="set", args={"path": "classes.batch.weight", "value": "3"}),
        change(4, args={"tenant": "zeta"}),
    ]
    append(audit_path(tmp_path), *records[:2])
    catch_up(table, tmp_path)
    append(audit_path(tmp_path), *records[2:])
    asked = {
        (): [1, 2, 3, 4],
        (("tenant", "acme"),): [1, 2],
        (("command", "set"),): [2, 3],
        (("since", TIME.format(0.003)),): [3, 4],
        (("tenant", "acme"), ("command", "pause")): [1],
    }
    for args, expected in asked.items():
        question = Question(limit=10, **dict(args))
        assert steps(answer(tmp_path, question)[0]) == expected, args
        assert steps(answer_from_log(tmp_path, question)) == expected, args
    assert steps(answer(tmp_path, Question(limit=3))[0]) == [2, 3, 4]


@pytest.mark.parametrize(
    ("args", "tenant"),
    [
        ({"tenant": "acme"}, "acme"),
        ({"path": "tenants.acme.weight"}, "acme"),
        ({"path": "tenants[a.b-c].weight"}, "a.b-c"),
        ({"path": "classes.batch.weight"}, ""),
        ({"class": "batch"}, ""),
        (None, ""),
    ],
)
def test_a_command_is_about_the_tenant_in_its_arguments(args: object, tenant: str) -> None:
    """By name, or by the path of a setting."""
    assert tenant_of({"args": args}) == tenant


def test_the_table_is_bounded(
    table: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest are kept, and so are positions of files that are there."""
    monkeypatch.setattr(audit_table, "MAX_ROWS", 10)
    for begin in range(0, 40, 4):
        append(audit_path(tmp_path), *map(change, range(begin, begin + 4)))
        catch_up(table, tmp_path)
        if begin < 36:
            audit_path(tmp_path).unlink()
    assert in_table(table) == list(range(30, 40))
    assert table.execute("SELECT COUNT(*) FROM audit_read").fetchone() == (1,)


def test_a_long_log_is_brought_in_by_pieces(
    table: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the answer has the newest and says that it is not complete."""
    monkeypatch.setattr(audit_lines, "MAX_PIECE_BYTES", 1000)
    append(audit_path(tmp_path), *map(change, range(100)))
    catch_up(table, tmp_path)
    begun = in_table(table)
    assert begun == list(range(len(begun)))
    assert 0 < len(begun) < 20
    commands, is_complete = answer(tmp_path, ALL)
    assert (commands[-1]["step"], is_complete) == (99, False)
    for _ in range(100):
        catch_up(table, tmp_path)
    assert in_table(table) == list(range(100))
    assert answer(tmp_path, ALL)[1] is True


def test_what_is_no_line_of_ours_is_passed_over(
    table: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is, and whatever it is."""
    monkeypatch.setattr(audit_lines, "MAX_PIECE_BYTES", 1000)
    append(audit_path(tmp_path), change(1))
    with audit_path(tmp_path).open("ab") as file:
        file.write(b"x" * 5000 + b"\n[1]\nnull\n\xff\n")
    append(audit_path(tmp_path), change(2))
    for _ in range(10):
        catch_up(table, tmp_path)
    assert in_table(table) == [1, 2]


def test_a_database_of_the_version_before_gets_the_table(tmp_path: Path) -> None:
    """What it has stays; until it is opened to be written it has no audit to tell."""
    with closing(open_to_write(tmp_path)) as old:
        old.execute("REPLACE INTO kept VALUES ('tenancy', '{}')")
        old.executescript("DROP TABLE audit; DROP TABLE audit_read; PRAGMA user_version = 1")
    with pytest.raises(StateError, match="no such table"):
        answer(tmp_path, ALL)
    with closing(open_to_write(tmp_path)) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == ("{}",)
        assert answer(tmp_path, ALL) == ([], True)


def test_a_log_that_cannot_be_read_is_an_error_of_its_own(
    table: Connection, tmp_path: Path
) -> None:
    """A symbolic link is not followed to a file of somebody's choice."""
    append(tmp_path / "elsewhere", change(1))
    audit_path(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match=r"the audit log in .* cannot be read"):
        catch_up(table, tmp_path)
    with pytest.raises(StateError, match=r"the audit log in .* cannot be read"):
        answer(tmp_path, ALL)
    assert answer_from_log(tmp_path, ALL) == []


def test_without_a_database_the_log_answers(tmp_path: Path) -> None:
    """An engine that has kept nothing yet has its log all the same."""
    log = AuditLog(tmp_path, lambda: TIME.format(1))
    log.record({"command": "pause", "step": 1})
    log.close()
    assert steps(answer(tmp_path, ALL)[0]) == [1]
    assert not (tmp_path / FILE_NAME).exists()
