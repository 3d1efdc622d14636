"""The writer of the state database: what it says is kept is kept, and it outlives what happens to
its file."""

import itertools
import queue
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from core.state_database import FILE_NAME, TENANCY, open_to_write, read_kept
from frontends.admin.state.keeper import FORGET_NS, Keeper, Kept
from frontends.admin.state.usage import Counters, read_usage
from ipc.directory import DirectorySnapshot
from tests.support.processes.engine import wait_until

WAIT_S = 30
HOUR_S = 3600
ACME: tuple[str, str] = ("acme", "requests")


class Clock:
    """Wall-clock time that a test sets."""

    def __init__(self) -> None:
        self.time_s = 10.0 * HOUR_S

    def __call__(self) -> float:
        return self.time_s


class Rig:
    """A keeper of engine `run`, and what it has said is kept."""

    def __init__(self, directory: Path, clock: Clock, run: str) -> None:
        self.kept: queue.Queue[DirectorySnapshot] = queue.Queue()
        self.keeper = Keeper(directory, run, clock, self.kept.put)
        self.version = 0

    def keep(self, counters: Counters, changes: str = "{}", counted_to_ns: int = 0) -> None:
        """Keep a moment under a new version of the directory, and wait until that is done."""
        self.version += 1
        snapshot = DirectorySnapshot(version=self.version, changes=changes)
        self.keeper.keep(Kept(snapshot, counters, counted_to_ns))
        assert self.kept.get(timeout=WAIT_S) == snapshot

    def close(self) -> None:
        """End as at the end of a worker."""
        self.keeper.close(Kept(DirectorySnapshot(version=self.version, changes="{}"), {}))


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands at ten hours."""
    return Clock()


@pytest.fixture
def start(tmp_path: Path, clock: Clock) -> Iterator[Callable[[str], Rig]]:
    """Return a function that starts a keeper of an engine; all are ended afterwards."""
    rigs: list[Rig] = []

    def end() -> None:
        while rigs:
            rigs.pop().close()

    def start_one(run: str) -> Rig:
        end()
        rigs.append(Rig(tmp_path / "state", clock, run))
        return rigs[-1]

    yield start_one
    end()


Start = Callable[[str], Rig]


def used(directory: Path, since_s: int = 0) -> Counters:
    """Return the usage in the database."""
    return read_usage(directory / "state", "any", since_s)[0]


def test_usage_grows_by_the_hour_and_over_restarts(
    start: Start, clock: Clock, tmp_path: Path
) -> None:
    """A worker that restarts counts on; another engine counts from 0."""
    start("one").keep({ACME: 5})
    rig = start("one")
    rig.keep({ACME: 7})
    clock.time_s += HOUR_S
    rig.keep({ACME: 10})
    start("two").keep({ACME: 4})
    assert used(tmp_path) == {ACME: 14}
    assert used(tmp_path, 11 * HOUR_S) == {ACME: 7}


def test_usage_is_kept_for_more_than_a_year(start: Start, clock: Clock, tmp_path: Path) -> None:
    """And not for ever."""
    rig = start("one")
    rig.keep({ACME: 5})
    clock.time_s += 366 * 24 * HOUR_S
    rig.keep({ACME: 7})
    assert used(tmp_path) == {ACME: 7}
    clock.time_s += 366 * 24 * HOUR_S
    rig.keep({ACME: 8})
    assert used(tmp_path) == {ACME: 3}


def test_a_page_that_cannot_be_read_once_is_not_counted_again(start: Start, tmp_path: Path) -> None:
    """The counters go on where they stood."""
    rig = start("one")
    for counters in ({ACME: 5}, {}, {ACME: 6}):
        rig.keep(counters)
    assert used(tmp_path) == {ACME: 6}


def test_the_sum_of_a_tenant_is_that_of_all_its_tenures(start: Start, tmp_path: Path) -> None:
    """Of one row after another, and of several processes."""
    rig = start("one")
    rig.keep({("acme", "requests@http.0/1"): 5, ("acme", "requests@http.1/4"): 2})
    rig.keep({("acme", "requests@http.0/7"): 1, ("acme", "requests@http.1/4"): 3})
    assert used(tmp_path) == {ACME: 9}


def test_it_is_told_up_to_when_all_counters_are_kept(start: Start) -> None:
    """Also by a moment in which nothing has grown; not by one in which a page is missing."""
    rig = start("one")
    for counted_to_ns, kept_ns in ((70, 70), (0, 70), (80, 80)):
        moment = Kept(DirectorySnapshot(version=1), {ACME: 5}, counted_to_ns)
        until(partial(is_told, rig, kept_ns), rig, moment)


def test_where_a_counter_stood_is_forgotten_after_its_end(start: Start, tmp_path: Path) -> None:
    """A while after, for answers that are on their way; what was used is not."""
    rig = start("one")
    old, new = ("acme", "requests@http.0/1"), ("zeta", "requests@http.0/2")
    rig.keep({old: 5}, counted_to_ns=1)
    for number, counted_to_ns in enumerate((2, FORGET_NS, FORGET_NS + 3), 1):
        rig.keep({new: number}, counted_to_ns=counted_to_ns)
        counted = read_usage(tmp_path / "state", "one", 0)[1]
        assert (old in counted) == (number < 3)
    assert used(tmp_path) == {ACME: 5, ("zeta", "requests"): 3}


def test_changes_are_kept_for_the_next_start(start: Start, tmp_path: Path) -> None:
    """The newest of them; the file is its owner's alone."""
    rig = start("one")
    for changes in ('{"paused_tenants":["acme"]}', '{"paused_tenants":["zeta"]}'):
        rig.keep({}, changes)
    assert read_kept(tmp_path / "state", TENANCY) == '{"paused_tenants":["zeta"]}'
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_is_set_aside_and_a_new_one_begun(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Loudly; what was in it can still be looked at."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE_NAME).write_bytes(b"no database " * 500)
    rig = start("one")
    rig.keeper.keep(Kept(DirectorySnapshot(version=1), {ACME: 5}))  # finds the damage
    until_kept(rig, {ACME: 5})
    assert used(tmp_path) == {ACME: 5}
    (aside,) = (tmp_path / "state").glob("state.db.damaged-*")
    assert aside.read_bytes().startswith(b"no database")
    assert "is damaged and lies at" in caplog.text


def test_while_the_file_cannot_be_opened_nothing_is_lost(start: Start, tmp_path: Path) -> None:
    """Nothing counts as kept; with the first write that succeeds all is there."""
    (tmp_path / "state").write_text("not a directory")
    rig = start("one")
    rig.keeper.keep(Kept(DirectorySnapshot(version=1), {ACME: 5}))
    until(lambda: rig.keeper.failures > 0, rig)
    assert rig.kept.empty()
    (tmp_path / "state").unlink()
    until_kept(rig, {ACME: 6})
    assert used(tmp_path) == {ACME: 6}
    assert rig.keeper.failures == 0


def test_a_full_disk_loses_nothing(start: Start, tmp_path: Path) -> None:
    """A write that does not fit is taken back as a whole and made good by the next that does."""
    rig = start("one")
    rig.keep({ACME: 5})
    with closing(open_to_write(tmp_path / "state")) as other:
        other.execute("BEGIN IMMEDIATE")  # as a disk that takes nothing: nobody else can write
        rig.keeper.keep(Kept(DirectorySnapshot(version=2), {ACME: 8}))
        until(lambda: rig.keeper.failures > 0, rig)
        other.execute("ROLLBACK")
    until_kept(rig, {ACME: 9})
    assert used(tmp_path) == {ACME: 9}


def test_a_database_of_a_newer_version_is_left_alone(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not written and not moved away."""
    with closing(open_to_write(tmp_path / "state")) as connection:
        connection.execute("PRAGMA user_version = 99")
    rig = start("one")
    until(lambda: rig.keeper.failures > 0, rig)
    rig.close()
    with closing(sqlite3.connect(tmp_path / "state" / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (99,)
    assert "was written by a newer version" in caplog.text


def is_told(rig: Rig, kept_ns: int) -> bool:
    """Tell whether the keeper has counters up to then."""
    return rig.keeper.kept_ns == kept_ns


def until(condition: Callable[[], bool], rig: Rig, moment: Kept | None = None) -> None:
    """Offer moments, or one of them, until something has happened."""
    versions = itertools.count(100)

    def has_happened() -> bool:
        rig.keeper.keep(moment or Kept(DirectorySnapshot(version=next(versions)), {}))
        return condition()

    wait_until(has_happened, "what a moment does")


def until_kept(rig: Rig, counters: Counters) -> None:
    """Offer `counters` until they are kept."""

    def is_kept() -> bool:
        rig.keeper.keep(Kept(DirectorySnapshot(version=99), counters))
        try:
            return rig.kept.get(timeout=0.1).version == 99
        except queue.Empty:
            return False

    assert any(is_kept() for _ in range(10 * WAIT_S))
