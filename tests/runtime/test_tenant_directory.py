"""The tenant directory: from the configuration to every loop, and back into its words."""

from dataclasses import fields, replace

import msgspec

from core.config.headrace import HeadraceConfig
from core.tenancy.classes import ClassConfig
from core.tenancy.directory import snapshot_of, tenancy_of
from core.tenancy.tenancy import Tenancy
from core.tenancy.tenants import TenantConfig
from ipc.directory import (
    DirectoryClass,
    DirectoryReader,
    DirectoryTenant,
    DirectoryWatch,
    DirectoryWriter,
    directory_layout,
)
from ipc.layout import anonymous_segment
from tests.support.loops.loop_rig import LoopRig

ACME = TenantConfig(
    name="acme", weight=3.0, max_concurrency=4, tokens_per_minute=100, kv_quota_fraction=0.25,
    replicas=(0,), classes=("standard", "batch"), key_sha256=("0" * 64,),
)  # fmt: skip


def test_every_field_of_classes_and_tenants_is_published() -> None:
    """A key of the configuration that other processes would not see cannot be forgotten."""
    own = {"paused"}
    assert {f.name for f in msgspec.structs.fields(DirectoryTenant)} - own == {
        f.name for f in fields(TenantConfig)
    }
    assert {f.name for f in msgspec.structs.fields(DirectoryClass)} - own - {"name"} == {
        f.name for f in fields(ClassConfig)
    }


def test_what_is_published_is_what_comes_back() -> None:
    """Values, order and pauses survive."""
    tenancy = Tenancy(
        classes=replace(HeadraceConfig().classes, batch=ClassConfig(weight=0.5, max_seqs=7)),
        tenants=(ACME, TenantConfig(name="zeta")),
        paused_tenants=frozenset({"zeta"}),
        paused_classes=frozenset({"batch"}),
    )
    assert tenancy_of(snapshot_of(tenancy, "")) == tenancy


def test_without_tenants_the_default_one_is_published() -> None:
    """A directory is never without a tenant."""
    assert [tenant.name for tenant in HeadraceConfig().tenancy.tenants] == ["default"]


def test_a_scheduler_goes_by_a_new_version_before_its_next_step() -> None:
    """The version it confirms is the one whose limits its core has."""
    rig, segment, confirmed = LoopRig(), anonymous_segment(directory_layout(65_536)), list[int]()
    assert rig.scheduler is not None
    rig.scheduler.channels = replace(
        rig.scheduler.channels,
        directory=DirectoryWatch(DirectoryReader(segment).read, confirmed.append),
    )
    tenancy = Tenancy(tenants=(ACME,), paused_tenants=frozenset({"acme"}))
    DirectoryWriter(segment).publish(snapshot_of(tenancy, ""))
    for _ in range(2):
        rig.scheduler.loop.step(rig.scheduler.channels, rig.clock)
    assert confirmed == [1]
    limits = rig.scheduler.loop.core.limits
    assert limits.tenant("acme") == ACME
    assert limits.paused == {"acme"}
