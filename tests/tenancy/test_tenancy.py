"""Classes and tenants: what is refused as a whole, how they change, and what is in use of them."""

from dataclasses import replace

import pytest

from core.config.engine import EngineConfig
from core.config.headrace import HeadraceConfig
from core.errors import ConfigError
from core.tenancy.changes import (
    add_tenant,
    remove_tenant,
    rotate_key,
    set_paused,
    set_value,
)
from core.tenancy.classes import ClassConfig, ClassesConfig
from core.tenancy.in_use import Held, InUse, broken_promises
from core.tenancy.tenancy import Room, Tenancy
from core.tenancy.tenants import TenantConfig

DIGEST = "a" * 64
ACME = TenantConfig(name="acme.eu", key_sha256=(DIGEST,), max_concurrency=8)
TENANCY = Tenancy(tenants=(ACME, TenantConfig(name="zeta")))


ROOM = Room(num_replicas=1, max_num_seqs=64)


def faults(tenancy: Tenancy) -> str:
    """Return all faults in one text, on an engine of two replicas."""
    return "\n".join(tenancy.faults(Room(2, 64)))


CONTRADICTIONS = [
    (TenantConfig(name="a", weight=0.0), "tenants[a].weight = 0.0 is out of range"),
    (TenantConfig(name="a", weight=-1.0), "tenants[a].weight = -1.0 is out of range"),
    (TenantConfig(name="a", tokens_per_minute=-5), "tenants[a].tokens_per_minute = -5"),
    (TenantConfig(name="a", burst_tokens=5), "tenants[a].burst_tokens = 5 needs"),
    (TenantConfig(name="a", budget_mode="lax"), "tenants[a].budget_mode = 'lax' is unknown"),
    (TenantConfig(name="a", classes=("bulk",)), "tenants[a].classes = 'bulk' is unknown"),
    (TenantConfig(name="a", classes=()), "tenants[a].classes is empty"),
    (TenantConfig(name="a", classes=("batch", "batch")), "tenants[a].classes names 'batch' twice"),
    (
        TenantConfig(name="a", classes=("batch",)),
        "tenants[a].default_class = 'standard' is unknown: use one of batch",
    ),
    (TenantConfig(name="a", replicas=(0, 2)), "tenants[a].replicas = 2 does not exist"),
    (TenantConfig(name="a", replicas=(1, 1)), "tenants[a].replicas names 1 twice"),
    (TenantConfig(name="a", kv_quota_fraction=0.0), "tenants[a].kv_quota_fraction = 0.0"),
    (
        TenantConfig(name="a", max_concurrency=9, max_queued_requests=-1),
        "tenants[a].max_queued_requests = -1",
    ),
    (TenantConfig(name="no name"), "tenants[no name].name must be"),
    (TenantConfig(name="_other"), "tenants[_other].name is what tenants without a row"),
]


@pytest.mark.parametrize(("tenant", "line"), CONTRADICTIONS, ids=lambda case: str(case)[:40])
def test_a_tenant_that_contradicts_itself_is_named_with_its_key(
    tenant: TenantConfig, line: str
) -> None:
    """One line a fault, each with the path that the file has."""
    assert line in faults(Tenancy(tenants=(tenant,)))


CLASS_CONTRADICTIONS = [
    (ClassConfig(weight=0.0), "classes.batch.weight = 0.0"),
    (ClassConfig(reserved_step_fraction=0.6), "reserved_step_fraction add up to 1.1"),
    (ClassConfig(reserved_kv_fraction=0.9), "reserved_kv_fraction add up to 1.02"),
    (
        ClassConfig(reserved_kv_fraction=0.3, max_kv_fraction=0.2),
        "classes.batch.reserved_kv_fraction = 0.3 exceeds classes.batch.max_kv_fraction = 0.2",
    ),
    (
        ClassConfig(reserved_seqs=3, max_seqs=2),
        "classes.batch.reserved_seqs = 3 exceeds classes.batch.max_seqs = 2",
    ),
    (ClassConfig(over_cap="drop"), "classes.batch.over_cap = 'drop' is unknown"),
    (ClassConfig(over_cap="demote"), "classes.batch.over_cap = 'demote' needs"),
    (ClassConfig(ttft_ms=-1), "classes.batch.ttft_ms = -1"),
    (
        ClassConfig(itl_ms=100, pausable=True),
        "classes.batch.pausable contradicts classes.batch.itl_ms = 100",
    ),
]


@pytest.mark.parametrize(("batch", "line"), CLASS_CONTRADICTIONS, ids=lambda case: str(case)[:40])
def test_classes_that_contradict_each_other_are_named(batch: ClassConfig, line: str) -> None:
    """Alone and in their sums over all classes."""
    assert line in faults(Tenancy(classes=ClassesConfig(batch=batch)))


def test_all_faults_are_named_at_once() -> None:
    """Whoever mends a file need not start it again for each line."""
    tenants = (
        TenantConfig(name="a", weight=0.0, key_sha256=(DIGEST,)),
        TenantConfig(name="b", key_sha256=(DIGEST, "xyz"), replicas=(7,)),
        TenantConfig(name="b"),
    )
    classes = ClassesConfig(batch=ClassConfig(reserved_step_fraction=0.7))
    config = HeadraceConfig(
        engine=EngineConfig(replicas=2), tenants=tenants, classes=classes, name="not ok"
    )
    with pytest.raises(ConfigError) as refused:
        config.check()
    for line in (
        "name = 'not ok'",
        "tenants[a].weight = 0.0",
        "tenants[b].key_sha256 is not a SHA-256",
        "tenants[b].key_sha256 is a key of tenants[a] too",
        "tenants[b].replicas = 7 does not exist: the last one is 1 (engine.replicas = 2)",
        "tenants[b] is defined twice",
        "classes: the reserves reserved_step_fraction add up to 1.2, more than 1",
    ):
        assert line in str(refused.value)


def test_reserved_sequences_must_fit_the_engine() -> None:
    """More sequences than a replica runs cannot be kept free."""
    config = HeadraceConfig(engine=EngineConfig(max_num_seqs=4))
    assert "classes: the reserves reserved_seqs add up to 5" in "\n".join(config.faults())


def test_a_tenant_that_may_hold_less_than_its_class_is_promised_is_refused() -> None:
    """The only tenant of a class cannot use a reserve that is larger than its quota."""
    tenants = (TenantConfig(name="a", classes=("standard", "interactive"), kv_quota_fraction=0.05),)
    assert "classes.interactive.reserved_kv_fraction = 0.1 cannot be used" in faults(
        Tenancy(tenants=tenants)
    )


@pytest.mark.parametrize("path", ["tenants.acme.eu.weight", "tenants[acme.eu].weight"])
def test_a_setting_of_a_tenant_is_changed_by_its_path(path: str) -> None:
    """Both spellings, also for a name with dots; nothing else changes."""
    change = set_value(TENANCY, path, "2.5", ROOM)
    assert (change.before, change.after) == (1.0, 2.5)
    assert change.tenancy.tenants[0] == replace(ACME, weight=2.5)
    assert change.tenancy.tenants[1:] == TENANCY.tenants[1:]


def test_a_setting_of_a_class_is_changed_by_its_path() -> None:
    """Values are what they would be in the file."""
    change = set_value(TENANCY, "classes.batch.over_cap", "reject", ROOM)
    assert change.tenancy.classes.batch.over_cap == "reject"
    change = set_value(TENANCY, "classes.batch.pausable", "false", ROOM)
    assert change.tenancy.classes.batch.pausable is False


REFUSED = [
    ("classes.bulk.weight", "1", "there is no class 'bulk'"),
    ("tenants.nobody.weight", "1", "there is no tenant 'nobody'"),
    ("classes.batch.wieght", "1", "did you mean classes.batch.weight?"),
    ("tenants.zeta.wait", "1", "unknown key tenants.zeta.wait: did you mean"),
    ("classes.batch.weight", "heavy", "classes.batch.weight: Expected `float`, got `str`"),
    ("tenants.zeta.replicas", "[3]", "tenants[zeta].replicas = 3 does not exist"),
    ("tenants.zeta.name", "x", "cannot be set"),
    ("tenants.zeta.key_sha256", "[]", "cannot be set"),
    ("http.port", "1", "a path is classes.NAME.KEY or tenants.NAME.KEY"),
    ("classes.interactive.reserved_kv_fraction", "0.99", "is out of range"),
    ("classes.standard.reserved_step_fraction", "0.6", "add up to 1.1, more than 1"),
]


@pytest.mark.parametrize(("path", "value", "message"), REFUSED, ids=lambda text: text[:45])
def test_a_change_that_cannot_be_accepted_says_why(path: str, value: str, message: str) -> None:
    """In the words that the configuration file would be refused with."""
    with pytest.raises(ConfigError) as refused:
        set_value(TENANCY, path, value, ROOM)
    assert message in str(refused.value)


def test_pausing_twice_is_pausing_once() -> None:
    """The second change changes nothing, and says that it was so before."""
    once = set_paused(TENANCY, "tenant", "zeta", True)
    twice = set_paused(once.tenancy, "tenant", "zeta", True)
    assert (once.before, twice.before, twice.tenancy) == (False, True, once.tenancy)
    assert set_paused(twice.tenancy, "tenant", "zeta", False).tenancy == TENANCY
    assert set_paused(TENANCY, "class", "batch", True).tenancy.paused_classes == {"batch"}
    with pytest.raises(ConfigError, match="no class 'zeta'"):
        set_paused(TENANCY, "class", "zeta", True)


def test_tenants_come_and_go() -> None:
    """A key opens for one tenant only; removing takes the pause along; the last one stays."""
    added = add_tenant(TENANCY, "new", "b" * 64, ROOM).tenancy
    assert add_tenant(added, "new", "b" * 64, ROOM).tenancy == added
    with pytest.raises(ConfigError, match="exists with other keys"):
        add_tenant(added, "new", "c" * 64, ROOM)
    with pytest.raises(ConfigError, match="is a key of tenants"):
        add_tenant(added, "other", DIGEST, ROOM)
    paused = set_paused(added, "tenant", "new", True).tenancy
    assert remove_tenant(paused, "new").tenancy == TENANCY
    assert remove_tenant(TENANCY, "new").tenancy == TENANCY
    with pytest.raises(ConfigError, match="the last tenant"):
        remove_tenant(Tenancy(tenants=(ACME,)), "acme.eu")


def test_a_new_key_replaces_the_old_one_unless_it_is_kept() -> None:
    """Clients can be moved one after the other, and asking twice is asking once."""
    kept = rotate_key(TENANCY, "acme.eu", "b" * 64, True, ROOM).tenancy
    assert kept.tenants[0].key_sha256 == ("b" * 64, DIGEST)
    assert rotate_key(kept, "acme.eu", "b" * 64, True, ROOM).tenancy == kept
    dropped = rotate_key(kept, "acme.eu", "b" * 64, False, ROOM).tenancy
    assert dropped.tenants[0].key_sha256 == ("b" * 64,)


BUSY = InUse(
    num_blocks=100,
    classes={"interactive": Held(3, 8), "standard": Held(6, 40), "batch": Held(9, 50)},
    tenants={"acme.eu": Held(5, 30)},
)

IN_USE = [
    ("classes.standard.max_kv_fraction", "0.3", "would be 30 KV blocks, 40 are in use now"),
    ("classes.standard.max_seqs", "5", "would allow 5 running requests, 6 run now"),
    ("classes.interactive.reserved_kv_fraction", "0.05", "would be 5 KV blocks, 8 are in use"),
    ("classes.interactive.reserved_seqs", "2", "would allow 2 running requests, 3 run now"),
    ("classes.interactive.reserved_kv_fraction", "0.7", "add up to 112 of 100 KV blocks"),
    ("tenants.acme.eu.kv_quota_fraction", "0.2", "would be 20 KV blocks, 30 are in use now"),
    ("tenants.acme.eu.max_concurrency", "4", "would allow 4 running requests, 5 run now"),
]


@pytest.mark.parametrize(("path", "value", "message"), IN_USE, ids=lambda text: text[:45])
def test_what_is_in_use_is_not_taken_away(path: str, value: str, message: str) -> None:
    """The refusal compares two numbers; an idle engine accepts the same change."""
    after = set_value(TENANCY, path, value, ROOM).tenancy
    (line,) = broken_promises(TENANCY, after, BUSY)
    assert message in line
    assert list(broken_promises(TENANCY, after, InUse(num_blocks=100))) == []
    assert list(broken_promises(TENANCY, after, InUse())) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("classes.standard.max_kv_fraction", "0.5"),
        ("classes.interactive.reserved_kv_fraction", "0.2"),
        ("tenants.acme.eu.max_concurrency", "5"),
        ("classes.batch.weight", "9"),
    ],
)
def test_what_leaves_room_for_what_is_in_use_is_accepted(path: str, value: str) -> None:
    """Batch blocks are no obstacle to a larger reserve: they can be taken back."""
    after = set_value(TENANCY, path, value, ROOM).tenancy
    assert list(broken_promises(TENANCY, after, BUSY)) == []
