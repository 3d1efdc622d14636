"""Commands that change the tenant directory, on a stage without children."""

import logging
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.config.file import load_config
from core.config.headrace import HeadraceConfig
from core.config.processes import HttpConfig, TokenizerConfig
from core.errors import (
    ConfigError,
    StateDamagedError,
    StateError,
    StateLockedError,
    StateNewerError,
)
from core.monotonic_clock import MonotonicClock
from core.runtime.supervisor.kept_changes import starting_tenancy
from core.runtime.supervisor.log_levels import LogLevels
from core.runtime.supervisor.reload import Reload
from core.runtime.supervisor.stage import Stage, set_up
from core.runtime.supervisor.tenants import TenantCommands, in_use
from core.state_database import FILE_NAME, SCHEMA_VERSION, TENANCY, open_to_write
from core.supervision.spec import child_specs
from core.tenancy.classes import TrafficClass
from core.tenancy.difference import from_json, laid_over
from core.tenancy.directory import tenancy_of
from core.tenancy.tenants import TenantConfig
from ipc.board import BoardReader, BoardWriter
from ipc.control.declaration import ArgumentError, NotFoundError
from ipc.directory import DirectoryReader, DirectorySnapshot
from ipc.doorbell import Doorbell
from ipc.heartbeat import HeartbeatLine
from ipc.pages import SCHEDULER_PAGE

CONFIG = HeadraceConfig(
    name=f"t-{uuid.uuid4().hex[:12]}",
    http=HttpConfig(port=0, processes=2),
    tokenizer=TokenizerConfig(arena_tokens=65_536, processes=2),
    tenants=(TenantConfig(name="acme", key_sha256=("a" * 64,)), TenantConfig(name="zeta")),
)
BELLS = ("result.0", "output.0", "output.1", "directory.0", "directory.1", "state")


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Set the stage of an engine."""
    made = set_up(CONFIG, child_specs(CONFIG))
    yield made
    made.close()


def commands_on(stage: Stage) -> TenantCommands:
    """Return the commands of the stage's engine."""
    return TenantCommands(CONFIG, stage)


def published(stage: Stage) -> DirectorySnapshot:
    """Return what a process would read."""
    return DirectoryReader(stage.segments[stage.directory.directory]).read()


def show_held(stage: Stage) -> None:
    """Write a scheduler's page: 3 standard requests of acme run and hold 40 of 100 blocks."""
    segment = stage.segments[stage.directory.board("scheduler")]
    writer = BoardWriter(segment, SCHEDULER_PAGE, epoch=1)
    page: np.void = writer.page.reshape(1)[0]
    page["num_replicas"], page["num_tenants"] = 1, 1
    page["replicas"]["num_blocks"][0] = 100
    for row in (page["classes"][TrafficClass.STANDARD], page["tenants"][0]):
        row["num_running"], row["held_blocks"] = 3, 40
    page["tenants"][0]["name"] = b"acme"
    writer.publish(MonotonicClock().now_ns())


def test_a_change_is_published_and_everybody_is_rung(stage: Stage) -> None:
    """The next version has it, the admin key stays, and no reader needs to wait for its tick."""
    admin_key = published(stage).admin_key_sha256
    commands = commands_on(stage)
    answer = commands.carry_out("set", {"path": "tenants.acme.weight", "value": "3"})
    assert answer == {"version": 2, "before": 1.0, "after": 3.0}
    snapshot = published(stage)
    assert (snapshot.version, snapshot.admin_key_sha256) == (2, admin_key)
    assert tenancy_of(snapshot) == commands.tenancy
    assert tenancy_of(snapshot).tenants[0].weight == 3.0
    assert all(Doorbell(stage.fds[name]).clear() for name in BELLS)


def test_a_change_that_changes_nothing_is_no_new_version(stage: Stage) -> None:
    """Asking twice is the same as asking once."""
    commands = commands_on(stage)
    for before in (False, True):
        answer = commands.carry_out("pause", {"class": "batch"})
        assert answer == {"version": 2, "before": before, "after": True}
    assert tenancy_of(published(stage)).paused_classes == {"batch"}


def test_a_refused_change_changes_nothing(stage: Stage) -> None:
    """The message names the command, the key path and the fault."""
    commands = commands_on(stage)
    with pytest.raises(ArgumentError, match=r"set: tenants\[acme\]\.weight = 0.0 is out of range"):
        commands.carry_out("set", {"path": "tenants.acme.weight", "value": "0"})
    assert published(stage).version == 1
    assert not any(Doorbell(stage.fds[name]).clear() for name in BELLS)


def test_a_cap_below_what_is_held_now_is_refused(stage: Stage) -> None:
    """What is held is on the scheduler's page; without one nothing is in use."""
    page = BoardReader(stage.segments[stage.directory.board("scheduler")], SCHEDULER_PAGE)
    assert in_use(page).num_blocks == 0
    show_held(stage)
    commands = commands_on(stage)
    with pytest.raises(ArgumentError, match="would be 20 KV blocks, 40 are in use now"):
        commands.carry_out("set", {"path": "tenants.acme.kv_quota_fraction", "value": "0.2"})
    with pytest.raises(ArgumentError, match="would allow 2 running requests, 3 run now"):
        commands.carry_out("set", {"path": "classes.standard.max_seqs", "value": "2"})
    commands.carry_out("set", {"path": "tenants.zeta.kv_quota_fraction", "value": "0.2"})
    assert published(stage).version == 2


def test_tenants_and_keys_come_and_go(stage: Stage) -> None:
    """Each command is one version."""
    commands = commands_on(stage)
    new, newer = "b" * 64, "c" * 64
    commands.carry_out("add-tenant", {"tenant": "new", "digest": new})
    commands.carry_out("rotate-key", {"tenant": "new", "digest": newer, "old": "keep"})
    assert published(stage).tenants[-1].key_sha256 == (newer, new)
    commands.carry_out("remove-tenant", {"tenant": "new"})
    assert [tenant.name for tenant in published(stage).tenants] == ["acme", "zeta"]
    assert published(stage).version == 4


def test_what_is_not_configured_is_published_for_whoever_keeps_it(stage: Stage) -> None:
    """Settings, pauses, tenants and keys; nothing of what the configuration says."""
    commands = commands_on(stage)
    assert published(stage).changes == "{}"
    commands.carry_out("add-tenant", {"tenant": "new", "digest": "b" * 64})
    commands.carry_out("set", {"path": "tenants.new.weight", "value": "5"})
    commands.carry_out("set", {"path": "classes.batch.max_seqs", "value": "3"})
    commands.carry_out("rotate-key", {"tenant": "acme", "digest": "c" * 64})
    commands.carry_out("remove-tenant", {"tenant": "zeta"})
    commands.carry_out("pause", {"tenant": "acme"})
    restored = laid_over(CONFIG.tenancy, from_json(published(stage).changes))
    assert restored == commands.tenancy


def keep(directory: Path, changes: str) -> None:
    """Keep changes as admin worker 0 does."""
    with closing(open_to_write(directory)) as connection:
        connection.execute("REPLACE INTO kept VALUES (?, ?)", (TENANCY, changes))


def test_what_was_kept_is_in_force_at_the_next_start(tmp_path: Path) -> None:
    """Unless nothing is to be kept; without a database the engine starts as configured."""
    configured = CONFIG.tenancy
    assert starting_tenancy(CONFIG, tmp_path) == configured
    keep(tmp_path, '{"tenants": {"zeta": {"weight": 9.0}}, "paused_tenants": ["zeta"]}')
    tenancy = starting_tenancy(CONFIG, tmp_path)
    assert tenancy.tenants == (CONFIG.tenants[0], TenantConfig(name="zeta", weight=9.0))
    assert tenancy.paused_tenants == {"zeta"}
    without = replace(CONFIG, admin=replace(CONFIG.admin, keep_state=False))
    assert starting_tenancy(without, tmp_path) == configured


@pytest.mark.parametrize(
    "changes",
    [
        '{"added": ["new"], "tenants": {"new": {"key_sha256": ["' + "a" * 64 + '"]}}}',
        '{"tenants": {"zeta": {"weight": "heavy"}}}',
        '{"tenants": {"zeta": {"weight": -1.0}}}',
        "no JSON",
    ],
)
def test_what_was_kept_must_go_with_the_configuration(tmp_path: Path, changes: str) -> None:
    """A key that two would have, or a value that is none, is a fault that names the database."""
    keep(tmp_path, changes)
    with pytest.raises(ConfigError, match=r"state\.db, over the configuration: "):
        starting_tenancy(CONFIG, tmp_path)


REVOKED = '{"tenants": {"acme": {"key_sha256": ["' + "b" * 64 + '"]}}}'


def refused_start(directory: Path) -> StateError:
    """Return why an engine with this state does not start; its file says what it said before."""
    path = directory / FILE_NAME
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(StateError) as refused:
        starting_tenancy(CONFIG, directory, lock_timeout_s=0.01)
    assert (path.read_bytes() if path.exists() else None) == before
    assert "\n" not in str(refused.value)
    return refused.value


@pytest.mark.parametrize("content", [b"no database " * 500, b"", b"SQLite format 3\x00" * 300])
def test_an_engine_with_a_damaged_database_does_not_start(tmp_path: Path, content: bytes) -> None:
    """Keys that were revoked would be good again; the message says how to give them up."""
    (tmp_path / FILE_NAME).write_bytes(content)
    error = refused_start(tmp_path)
    assert isinstance(error, StateDamagedError)
    assert f"mv {tmp_path / FILE_NAME} {tmp_path / 'given-up.db'}" in str(error)
    (tmp_path / FILE_NAME).rename(tmp_path / "given-up.db")
    assert starting_tenancy(CONFIG, tmp_path) == CONFIG.tenancy


def test_a_database_that_lost_its_end_is_damaged(tmp_path: Path) -> None:
    """As after a crash of the file system: the page with what was kept is not there."""
    keep(tmp_path, REVOKED)
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.truncate(4096)
    assert isinstance(refused_start(tmp_path), StateDamagedError)


def test_a_damaged_database_that_was_set_aside_is_missed(tmp_path: Path) -> None:
    """Until a new one was written, which has everything that is in force."""
    (tmp_path / f"{FILE_NAME}.damaged-17").write_bytes(b"no database")
    assert "state.db.damaged-17 is damaged, and nothing was kept since" in str(
        refused_start(tmp_path)
    )
    with closing(open_to_write(tmp_path)):
        pass
    assert "nothing was kept since" in str(refused_start(tmp_path))
    keep(tmp_path, REVOKED)
    assert starting_tenancy(CONFIG, tmp_path).tenants[0].key_sha256 == ("b" * 64,)


def test_an_engine_waits_for_a_locked_database_and_then_does_not_start(tmp_path: Path) -> None:
    """The message says how to find out who has it; nothing is lost, so nothing is given up."""
    keep(tmp_path, REVOKED)
    with closing(open_to_write(tmp_path)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("REPLACE INTO kept VALUES ('x', 'y')")
        error = refused_start(tmp_path)
        assert isinstance(error, StateLockedError)
        assert "fuser" in str(error)
        assert "given-up" not in str(error)
        other.execute("ROLLBACK")
    assert starting_tenancy(CONFIG, tmp_path).tenants[0].key_sha256 == ("b" * 64,)


def test_a_database_of_a_newer_version_is_not_taken_for_none(tmp_path: Path) -> None:
    """After a downgrade the engine does not start; the newer version can be started again."""
    keep(tmp_path, REVOKED)
    with closing(open_to_write(tmp_path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    error = refused_start(tmp_path)
    assert isinstance(error, StateNewerError)
    assert f"(99 > {SCHEMA_VERSION}): start that version" in str(error)


def test_a_database_that_may_not_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    """Here a directory in its place."""
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(StateError, match=r"state\.db cannot be read"):
        starting_tenancy(CONFIG, tmp_path)


def test_an_unknown_tenant_is_not_found(stage: Stage) -> None:
    """The code says so to programs, the message to people."""
    for command, args in (
        ("pause", {"tenant": "nobody"}),
        ("set", {"path": "tenants.nobody.weight", "value": "1"}),
        ("rotate-key", {"tenant": "nobody", "digest": "b" * 64}),
    ):
        with pytest.raises(NotFoundError, match="there is no tenant 'nobody'"):
            commands_on(stage).carry_out(command, args)


BATCH = "preemptible = true\npausable = true\noutput_quantile = 0.5\n"


class ReloadRig:
    """`reload` with a file that a test writes, and the log level put back."""

    def __init__(self, stage: Stage, file: Path) -> None:
        self.file = file
        self.write("")
        self.commands = TenantCommands(self.load(), stage)
        line = HeartbeatLine(stage.segments[stage.directory.heartbeats], 0)
        self.reload = Reload(self.load(), self.load, self.commands, LogLevels(line))

    def write(self, text: str) -> None:
        """Write the configuration: two tenants and `text`."""
        self.file.write_text(text + "\n[[tenants]]\nname = 'acme'\n[[tenants]]\nname = 'zeta'\n")

    def load(self) -> HeadraceConfig:
        """Read it."""
        return load_config(self.file, ["http.port=0", f"name={CONFIG.name}"])


@pytest.fixture
def rig(stage: Stage, tmp_path: Path) -> Iterator[ReloadRig]:
    """Return a rig; the level of the tests' own log is as before afterwards."""
    level = logging.getLogger().level
    yield ReloadRig(stage, tmp_path / "engine.toml")
    logging.getLogger().setLevel(level)


def test_a_reload_applies_what_may_change_and_names_the_rest(rig: ReloadRig, stage: Stage) -> None:
    """Every time until the restart; what was changed by command stays."""
    rig.commands.carry_out("set", {"path": "tenants.acme.weight", "value": "7"})
    rig.write(
        f"[classes.batch]\n{BATCH}max_seqs = 3\n[engine]\nblock_size = 64\n"
        "[supervision]\nlog_level = 'WARNING'\n[[tenants]]\nname = 'new'\n"
    )
    answer = rig.reload.carry_out()
    assert answer["changed"] == [
        "tenants[new]", "classes.batch.max_seqs", "supervision.log_level",
    ]  # fmt: skip
    assert answer["needs_restart"] == ["engine.block_size"]
    tenancy = tenancy_of(published(stage))
    assert {t.name: t.weight for t in tenancy.tenants} == {"acme": 7.0, "zeta": 1.0, "new": 1.0}
    assert tenancy.classes.batch.max_seqs == 3
    assert logging.getLogger().level == logging.WARNING
    changes = from_json(published(stage).changes)
    assert changes.tenants["acme"]["weight"] == 7.0
    assert (changes.added, changes.classes) == ((), {})
    again = rig.reload.carry_out()
    assert (again["changed"], again["needs_restart"]) == ([], ["engine.block_size"])
    assert again["version"] == answer["version"]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("[classes.batch]\nweight = 0\nmax_seqs = -1\n", ["batch.weight", "batch.max_seqs"]),
        ("[engine]\nblock_size = 7\n[classes.batch]\nweight = 2\n", ["engine.block_size"]),
        ("[classes.batsch]\nweight = 2\n", ["unknown key classes.batsch"]),
        ("[classes\n", ["is not valid TOML"]),
    ],
)
def test_a_reload_with_any_fault_changes_nothing(
    rig: ReloadRig, stage: Stage, text: str, faults: list[str]
) -> None:
    """Each fault is named with its key path."""
    rig.write(text)
    with pytest.raises(ArgumentError) as refused:
        rig.reload.carry_out()
    assert all(fault in str(refused.value) for fault in faults), refused.value
    assert published(stage).version == 1


def test_a_reload_cannot_take_away_what_is_in_use(rig: ReloadRig, stage: Stage) -> None:
    """As with `set`, and nothing else of the file is applied."""
    show_held(stage)
    rig.write("[classes.standard]\nmax_seqs = 2\n[classes.batch]\nweight = 2\n")
    with pytest.raises(ArgumentError, match="would allow 2 running requests, 3 run now"):
        rig.reload.carry_out()
    assert published(stage).version == 1


def test_a_file_that_is_gone_is_a_fault(rig: ReloadRig) -> None:
    """Nothing is changed by it."""
    rig.file.unlink()
    with pytest.raises(ArgumentError, match="reload: cannot read"):
        rig.reload.carry_out()
