"""The run directory: one live engine a name, nothing left behind, nobody else's place."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import tests.ipc.claimer_process as claimer_process
from ipc.base_directory import default_base, is_ours
from ipc.errors import (
    EngineNotFoundError,
    ForeignDirectoryError,
    RunDirectoryBusyError,
    RunDirectoryError,
)
from ipc.owner import Owner, is_alive, owner_of
from ipc.run_directory import Ports, RunDirectory, list_engines


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


class Claimer:
    """Another process that claims and dies on order."""

    def __init__(self, name: str, base: Path) -> None:
        command = [sys.executable, "-P", claimer_process.__file__, name, str(base)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.answer() == "ready"

    def order(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start_claimer(base: Path) -> Iterator[Callable[[], Claimer]]:
    claimers: list[Claimer] = []

    def start() -> Claimer:
        claimers.append(Claimer("engine", base))
        return claimers[-1]

    yield start
    for claimer in claimers:
        if claimer.process.returncode is None:
            claimer.kill()


def names_in(base: Path) -> list[str]:
    return sorted(path.name for path in base.iterdir())


def test_a_claimed_directory_is_private_and_says_whose_it_is(base: Path) -> None:
    """Base and directory have mode 0700, the papers 0600, and `owner.json` names this process."""
    run_directory = RunDirectory.claim("engine", base)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (base, run_directory.path)] == [0o700, 0o700]
    assert stat.S_IMODE((run_directory.path / "owner.json").stat().st_mode) == 0o600
    assert run_directory.owner == owner_of(os.getpid())
    assert names_in(base) == ["engine"]


def test_a_live_engine_keeps_its_name(start_claimer: Callable[[], Claimer], base: Path) -> None:
    """A second claim of the name is refused with the owner's pid; another name is free."""
    claimer = start_claimer()
    claimer.order("claim")
    assert claimer.answer() == "claimed"
    with pytest.raises(RunDirectoryBusyError, match=str(claimer.process.pid)) as caught:
        RunDirectory.claim("engine", base)
    assert caught.value.pid == claimer.process.pid
    RunDirectory.claim("other", base)
    assert names_in(base) == ["engine", "other"]


def test_a_dead_engine_is_swept(start_claimer: Callable[[], Claimer], base: Path) -> None:
    """After `kill -9` of the owner the name is free again and nothing of the dead one is left."""
    claimer = start_claimer()
    claimer.order("claim")
    assert claimer.answer() == "claimed"
    (base / "engine" / "spans.0").write_bytes(b"old")
    (base / "engine" / "folder").mkdir()
    claimer.kill()
    run_directory = RunDirectory.claim("engine", base)
    assert [path.name for path in run_directory.path.iterdir()] == ["owner.json"]
    assert names_in(base) == ["engine"]


def test_the_dead_of_other_names_are_swept(base: Path) -> None:
    """Their memory comes back with the next engine; the living and the unknown are left alone."""
    living, dead = RunDirectory.claim("living", base), RunDirectory.claim("dead", base)
    stranger = msgspec.structs.replace(dead.owner, start_ticks=1)
    (dead.path / "owner.json").write_bytes(msgspec.json.encode(stranger))
    (base / "unknown").mkdir()
    RunDirectory.claim("engine", base)
    assert names_in(base) == ["engine", "living", "unknown"]
    assert (living.path / "owner.json").exists()


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}, {"pid": 2**22 + 7}])
def test_a_reused_pid_does_not_keep_a_name(base: Path, change: dict[str, object]) -> None:
    """A living process with the pid but another start time or boot is not the owner."""
    run_directory = RunDirectory.claim("engine", base)
    stranger = msgspec.structs.replace(run_directory.owner, **change)
    (run_directory.path / "owner.json").write_bytes(msgspec.json.encode(stranger))
    assert not is_alive(stranger)
    assert RunDirectory.claim("engine", base).owner == owner_of(os.getpid())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}'])
def test_a_directory_without_a_readable_owner_is_swept(base: Path, content: bytes) -> None:
    """Unreadable papers are nobody's."""
    run_directory = RunDirectory.claim("engine", base)
    (run_directory.path / "owner.json").write_bytes(content)
    assert RunDirectory.claim("engine", base).path == run_directory.path


@pytest.mark.slow
def test_of_many_claimers_exactly_one_wins(
    start_claimer: Callable[[], Claimer], base: Path
) -> None:
    """Processes that claim a dead engine's name at the same moment: one gets it, the others are
    told its pid."""
    stale = start_claimer()
    stale.order("claim")
    assert stale.answer() == "claimed"
    claimers = [start_claimer() for _ in range(4)]
    stale.kill()
    for claimer in claimers:
        claimer.order("claim")
    answers = {claimer.process.pid: claimer.answer() for claimer in claimers}
    winners = [pid for pid, answer in answers.items() if answer == "claimed"]
    assert len(winners) == 1
    assert sorted(answers.values()) == [f"busy {winners[0]}"] * 3 + ["claimed"]


def test_removing_leaves_nothing(base: Path) -> None:
    """The directory goes, and the base with the last engine in it."""
    one, two = RunDirectory.claim("one", base), RunDirectory.claim("two", base)
    (one.path / "spans.0").write_bytes(b"x")
    assert one.remove()
    assert names_in(base) == ["two"]
    assert two.remove()
    assert not base.exists()
    assert not two.remove()


def test_a_predecessor_cannot_remove_its_successor(base: Path) -> None:
    """The handle of a dead engine (its janitor's) leaves a directory alone that is another's."""
    mine = RunDirectory.claim("engine", base)
    dead = RunDirectory(mine.path, msgspec.structs.replace(mine.owner, start_ticks=1))
    assert not dead.remove()
    assert (mine.path / "owner.json").exists()


def test_what_was_left_half_done_is_swept(base: Path) -> None:
    """Directories of a claim or a removal that was killed in between go with the next claim."""
    RunDirectory.claim("one", base)
    for name in (".new-1234", ".dead-1234"):
        (base / name).mkdir()
        (base / name / "file").write_bytes(b"x")
    RunDirectory.claim("two", base)
    assert names_in(base) == ["one", "two"]


def lay_symlink(base: Path) -> None:
    base.with_name("elsewhere").mkdir(mode=0o700)
    base.symlink_to(base.with_name("elsewhere"))


def lay_open_directory(base: Path) -> None:
    base.mkdir()
    base.chmod(0o755)


def lay_dangling_symlink(base: Path) -> None:
    base.symlink_to(base.with_name("nowhere"))


def lay_file(base: Path) -> None:
    base.write_bytes(b"")


def lay_directory_of_another_user(base: Path) -> None:
    base.mkdir(mode=0o700)
    if os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(base, 12345, 12345)


@pytest.mark.parametrize(
    "lay",
    [
        lay_symlink,
        lay_dangling_symlink,
        lay_open_directory,
        lay_file,
        lay_directory_of_another_user,
    ],
)
def test_a_base_that_is_not_ours_alone_is_refused(base: Path, lay: Callable[[Path], None]) -> None:
    """Anyone may lay a trap in /dev/shm: claiming, finding and listing all refuse to use it."""
    lay(base)
    for use in (RunDirectory.claim, RunDirectory.find):
        with pytest.raises(ForeignDirectoryError, match=str(base)):
            use("engine", base)
    with pytest.raises(ForeignDirectoryError):
        list_engines(base)


def test_a_name_that_is_something_else_is_refused(base: Path) -> None:
    """A file or a symlink in the place of the run directory is not deleted but named."""
    RunDirectory.claim("other", base)
    (base / "file").write_bytes(b"precious")
    (base / "link").symlink_to(base / "other")
    for name in ("file", "link"):
        with pytest.raises(ForeignDirectoryError, match=name):
            RunDirectory.claim(name, base)
    assert (base / "file").read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a" * 33, "ü", "a b", "a\n"])
def test_a_bad_name_is_refused(base: Path, name: str) -> None:
    """Names are file names, short and plain."""
    with pytest.raises(RunDirectoryError, match="name"):
        RunDirectory.claim(name, base)
    assert not base.exists()


def test_finding_an_engine(base: Path) -> None:
    """`find` gives the directory of a live engine, and tells otherwise how to start one, and which
    others live.
    """
    with pytest.raises(EngineNotFoundError, match="headrace serve --name engine"):
        RunDirectory.find("engine", base)
    claimed = RunDirectory.claim("engine", base)
    assert RunDirectory.find("engine", base) == claimed
    with pytest.raises(EngineNotFoundError, match=r"there is engine$"):
        RunDirectory.find("other", base)
    kill_on_paper(claimed)
    with pytest.raises(EngineNotFoundError, match=r"--name engine`$"):
        RunDirectory.find("engine", base)


def kill_on_paper(run_directory: RunDirectory) -> None:
    dead = msgspec.structs.replace(run_directory.owner, start_ticks=1)
    (run_directory.path / "owner.json").write_bytes(msgspec.json.encode(dead))


def test_listing_engines(base: Path) -> None:
    """Live and dead ones are told apart; what is no engine is not listed."""
    assert list_engines(base) == []
    RunDirectory.claim("live", base)
    kill_on_paper(RunDirectory.claim("dead", base))
    (base / "stray").mkdir()
    (base / ".new-1").mkdir()
    listed = [(engine.name, engine.is_alive) for engine in list_engines(base)]
    assert listed == [("dead", False), ("live", True)]


def test_a_base_that_goes_while_it_is_listed_has_no_engines(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last engine takes it away, at any moment: that is no fault of whoever looks."""
    last = RunDirectory.claim("last", base)

    def see_it_go(path: Path) -> bool:
        return is_ours(path) and last.remove()

    monkeypatch.setattr("ipc.run_directory.is_ours", see_it_go)
    assert list_engines(base) == []
    assert not base.exists()


def test_attaching_needs_an_engine(base: Path) -> None:
    """A child takes its directory as it is; a folder without owner is no engine's."""
    claimed = RunDirectory.claim("engine", base)
    assert RunDirectory.attach(claimed.path) == claimed
    with pytest.raises(RunDirectoryError, match="not the run directory"):
        RunDirectory.attach(base)


def test_papers_are_private_and_come_back(base: Path) -> None:
    """Ports and admin key are readable by this user only, and say so when they are missing."""
    run_directory = RunDirectory.claim("engine", base)
    for read in (run_directory.read_ports, run_directory.read_admin_key):
        with pytest.raises(RunDirectoryError, match="No such file"):
            read()
    ports = Ports("127.0.0.1", 8000, "127.0.0.1", 8001)
    run_directory.write_ports(ports)
    key = run_directory.write_admin_key()
    assert run_directory.read_ports() == ports
    assert run_directory.read_admin_key() == key
    assert len(key) >= 32
    assert run_directory.write_admin_key() != key
    papers = [run_directory.path / name for name in ("ports.json", "admin.key")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in papers} == {0o600}
    assert len(list(run_directory.path.iterdir())) == 3


def test_every_thing_has_its_own_path(base: Path) -> None:
    """The names of ARCHITECTURE's wiring table, all different."""
    d = RunDirectory.claim("engine", base)
    files = [d.spans(0), d.rows(0), d.plans(0), d.results(0), d.outputs(0), d.board("http.0")]
    assert [path.name for path in [*files, d.heartbeats, d.directory]] == [
        "spans.0", "rows.0", "plans.0", "results.0", "outputs.0", "board.http.0",
        "heartbeats", "directory",
    ]  # fmt: skip
    urls = [d.tokenizer_url(1), d.scheduler_url, d.supervisor_url, d.admin_url(0)]
    assert urls == [
        f"ipc://{d.path}/{name}.sock"
        for name in ("tokenizer.1", "scheduler", "supervisor", "admin.0")
    ]


def test_the_longest_name_fits_into_a_socket_address() -> None:
    """32 characters in the default base leave room for every socket; a longer base is refused."""
    owner = Owner(1, 1, "boot")
    assert RunDirectory(default_base() / ("n" * 32), owner).tokenizer_url(7).endswith(".sock")
    with pytest.raises(RunDirectoryError, match="too long for a socket"):
        _ = RunDirectory(Path("/dev/shm") / ("b" * 90) / "engine", owner).scheduler_url


def test_only_running_processes_have_an_identity() -> None:
    """A zombie is dead, and so is a pid that nobody has."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owner_of(child.pid) is None
    child.wait()
    assert owner_of(child.pid) is None
    me = owner_of(os.getpid())
    assert me is not None
    assert is_alive(me)
