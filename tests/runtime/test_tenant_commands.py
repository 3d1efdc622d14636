"""Commands that change the tenant directory, on a stage without children."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.config import HeadraceConfig, HttpConfig, TokenizerConfig
from core.errors import ConfigError
from core.monotonic_clock import MonotonicClock
from core.runtime.supervisor.kept_tenants import KeptTenants
from core.runtime.supervisor.stage import Stage, set_up
from core.runtime.supervisor.tenants import TenantCommands, in_use
from core.supervision.spec import child_specs
from core.tenancy import TenantConfig, TrafficClass
from core.tenant_directory import tenancy_of
from ipc.board import BoardReader, BoardWriter
from ipc.control.declaration import ArgumentError
from ipc.directory import DirectoryReader, DirectorySnapshot
from ipc.doorbell import Doorbell
from ipc.pages import SCHEDULER_PAGE

CONFIG = HeadraceConfig(
    name=f"t-{uuid.uuid4().hex[:12]}",
    http=HttpConfig(port=0, processes=2),
    tokenizer=TokenizerConfig(arena_tokens=65_536, processes=2),
    tenants=(TenantConfig(name="acme", key_sha256=("a" * 64,)), TenantConfig(name="zeta")),
)
BELLS = ("result.0", "output.0", "output.1", "directory.0", "directory.1")


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Set the stage of an engine."""
    made = set_up(CONFIG, child_specs(CONFIG))
    yield made
    made.close()


def commands_on(stage: Stage, directory: Path) -> TenantCommands:
    """Return the commands of the stage's engine; what is kept lies in `directory`."""
    return TenantCommands(CONFIG, stage, KeptTenants(directory, CONFIG))


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


def test_a_change_is_published_and_everybody_is_rung(stage: Stage, tmp_path: Path) -> None:
    """The next version has it, the admin key stays, and no reader needs to wait for its tick."""
    admin_key = published(stage).admin_key_sha256
    commands = commands_on(stage, tmp_path)
    answer = commands.carry_out("set", {"path": "tenants.acme.weight", "value": "3"})
    assert answer == {"version": 2, "before": 1.0, "after": 3.0}
    snapshot = published(stage)
    assert (snapshot.version, snapshot.admin_key_sha256) == (2, admin_key)
    assert tenancy_of(snapshot) == commands.tenancy
    assert tenancy_of(snapshot).tenants[0].weight == 3.0
    assert all(Doorbell(stage.fds[name]).clear() for name in BELLS)


def test_a_change_that_changes_nothing_is_no_new_version(stage: Stage, tmp_path: Path) -> None:
    """Asking twice is the same as asking once."""
    commands = commands_on(stage, tmp_path)
    for before in (False, True):
        answer = commands.carry_out("pause", {"class": "batch"})
        assert answer == {"version": 2, "before": before, "after": True}
    assert tenancy_of(published(stage)).paused_classes == {"batch"}


def test_a_refused_change_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    """The message names the command, the key path and the fault."""
    commands = commands_on(stage, tmp_path)
    with pytest.raises(ArgumentError, match=r"set: tenants\[acme\]\.weight = 0.0 is out of range"):
        commands.carry_out("set", {"path": "tenants.acme.weight", "value": "0"})
    assert published(stage).version == 1
    assert not any(Doorbell(stage.fds[name]).clear() for name in BELLS)


def test_a_cap_below_what_is_held_now_is_refused(stage: Stage, tmp_path: Path) -> None:
    """What is held is on the scheduler's page; without one nothing is in use."""
    page = BoardReader(stage.segments[stage.directory.board("scheduler")], SCHEDULER_PAGE)
    assert in_use(page).num_blocks == 0
    show_held(stage)
    commands = commands_on(stage, tmp_path)
    with pytest.raises(ArgumentError, match="would be 20 KV blocks, 40 are in use now"):
        commands.carry_out("set", {"path": "tenants.acme.kv_quota_fraction", "value": "0.2"})
    with pytest.raises(ArgumentError, match="would allow 2 running requests, 3 run now"):
        commands.carry_out("set", {"path": "classes.standard.max_seqs", "value": "2"})
    commands.carry_out("set", {"path": "tenants.zeta.kv_quota_fraction", "value": "0.2"})
    assert published(stage).version == 2


def test_tenants_and_keys_come_and_go(stage: Stage, tmp_path: Path) -> None:
    """Each command is one version."""
    commands = commands_on(stage, tmp_path)
    new, newer = "b" * 64, "c" * 64
    commands.carry_out("add-tenant", {"tenant": "new", "digest": new})
    commands.carry_out("rotate-key", {"tenant": "new", "digest": newer, "old": "keep"})
    assert published(stage).tenants[-1].key_sha256 == (newer, new)
    commands.carry_out("remove-tenant", {"tenant": "new"})
    assert [tenant.name for tenant in published(stage).tenants] == ["acme", "zeta"]
    assert published(stage).version == 4


def test_run_time_tenants_and_keys_outlive_the_engine(stage: Stage, tmp_path: Path) -> None:
    """The next start has them, not the other changes; what is as configured leaves no file."""
    commands = commands_on(stage, tmp_path / "state")
    commands.carry_out("set", {"path": "tenants.zeta.weight", "value": "9"})
    assert not (tmp_path / "state").exists()
    answer = commands.carry_out("add-tenant", {"tenant": "new", "digest": "b" * 64})
    assert answer["kept"] is True
    commands.carry_out("set", {"path": "tenants.new.weight", "value": "5"})
    commands.carry_out("rotate-key", {"tenant": "acme", "digest": "c" * 64})
    commands.carry_out("remove-tenant", {"tenant": "zeta"})
    file = tmp_path / "state" / "tenants.json"
    assert file.stat().st_mode & 0o777 == 0o600
    acme, zeta = CONFIG.tenants
    restored = KeptTenants(tmp_path / "state", CONFIG).restored()
    assert restored.tenants == (
        replace(acme, key_sha256=("c" * 64,)),
        TenantConfig(name="new", weight=5.0, key_sha256=("b" * 64,)),
    )
    KeptTenants(tmp_path / "state", CONFIG).save((acme, replace(zeta, weight=2.0)))
    assert not file.exists()
    assert KeptTenants(tmp_path / "state", CONFIG).restored() == CONFIG


def test_what_was_kept_must_go_with_the_configuration(stage: Stage, tmp_path: Path) -> None:
    """A key that the file now gives to somebody else is a fault with both names."""
    commands_on(stage, tmp_path).carry_out("add-tenant", {"tenant": "new", "digest": "b" * 64})
    other = TenantConfig(name="other", key_sha256=("b" * 64,))
    changed = replace(CONFIG, tenants=(*CONFIG.tenants, other))
    with pytest.raises(ConfigError, match=r"tenants.json, over .* is a key of tenants\[other\]"):
        KeptTenants(tmp_path, changed).restored()
    (tmp_path / "tenants.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tenants\.json cannot be read"):
        KeptTenants(tmp_path, CONFIG).restored()


def test_a_state_directory_that_cannot_be_written_is_told(stage: Stage, tmp_path: Path) -> None:
    """The change is in force all the same."""
    (tmp_path / "file").write_text("")
    commands = commands_on(stage, tmp_path / "file")
    answer = commands.carry_out("add-tenant", {"tenant": "new", "digest": "b" * 64})
    assert answer["kept"] is False
    assert published(stage).tenants[-1].name == "new"
