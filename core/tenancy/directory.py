"""The tenant directory in the words of this folder, and back.

Owns: this translation, in both directions. Never knows: shared memory (`ipc.directory`), or what a
setting means. A field that one side has and the other has not is an error at the first use, which
a test makes.
"""

from dataclasses import fields
from typing import Any

from core.tenancy.classes import ClassConfig, ClassesConfig
from core.tenancy.difference import Difference, difference, to_json
from core.tenancy.tenancy import Tenancy
from core.tenancy.tenants import TenantConfig
from ipc.directory import DirectoryClass, DirectorySnapshot, DirectoryTenant

CLASS_FIELDS = tuple(entry.name for entry in fields(ClassConfig))
TENANT_FIELDS = tuple(entry.name for entry in fields(TenantConfig))


def snapshot_of(
    tenancy: Tenancy, admin_key_sha256: str, configured: Tenancy | None = None
) -> DirectorySnapshot:
    """Return what to publish, with what of it is not `configured` (None: all is)."""
    changes = Difference() if configured is None else difference(configured, tenancy)
    return DirectorySnapshot(
        classes=tuple(
            DirectoryClass(
                name=entry.name,
                paused=entry.name in tenancy.paused_classes,
                **_values(getattr(tenancy.classes, entry.name), CLASS_FIELDS),
            )
            for entry in fields(ClassesConfig)
        ),
        tenants=tuple(
            DirectoryTenant(
                paused=tenant.name in tenancy.paused_tenants, **_values(tenant, TENANT_FIELDS)
            )
            for tenant in tenancy.tenants
        ),
        admin_key_sha256=admin_key_sha256,
        changes=to_json(changes),
    )


def tenancy_of(snapshot: DirectorySnapshot) -> Tenancy:
    """Return what was published."""
    return Tenancy(
        classes=ClassesConfig(
            **{c.name: ClassConfig(**_values(c, CLASS_FIELDS)) for c in snapshot.classes}
        ),
        tenants=tuple(TenantConfig(**_values(t, TENANT_FIELDS)) for t in snapshot.tenants),
        paused_tenants=frozenset(t.name for t in snapshot.tenants if t.paused),
        paused_classes=frozenset(c.name for c in snapshot.classes if c.paused),
    )


def _values(entry: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in names}
