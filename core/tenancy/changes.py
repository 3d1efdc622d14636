"""Changes of classes and tenants while the engine runs. Pure: a tenancy in, a tenancy out.

Owns: the paths that can be changed, what a value must be, and that the whole is acceptable
afterwards. Never knows: who asks, what is in use now (`core.tenancy.in_use`), or how the others
hear of it. A refused change changes nothing, and its message names every fault by its key path.

    classes.NAME.KEY     any key of a class
    tenants.NAME.KEY     any key of a tenant but its name and keys; tenants[NAME].KEY is the same
"""

import re
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from core.errors import ConfigError, UnknownTenantError
from core.settings.text import describe, nearest, parse_value
from core.tenancy.classes import CLASS_NAMES, ClassConfig
from core.tenancy.tenancy import Room, Tenancy
from core.tenancy.tenants import TenantConfig

_PATH = re.compile(r"(classes)\.(\w+)\.(\w+)|(tenants)(?:\.|\[)([\w.-]+?)\]?\.(\w+)")
_FIXED = ("name", "key_sha256")  # of a tenant: another tenant; `rotate-key`


@dataclass(frozen=True, slots=True)
class Change:
    """A change that can be accepted: what was, what shall be, and the tenancy with it."""

    tenancy: Tenancy
    before: object
    after: object


def set_value(tenancy: Tenancy, path: str, text: str, room: Room) -> Change:
    """Return `tenancy` with one key changed; the value is TOML, or text that stands for itself."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise ConfigError(f"{path}: a path is classes.NAME.KEY or tenants.NAME.KEY")
    table, name, key = match.groups()[:3] if match[1] else match.groups()[3:]
    if table == "classes":
        if name not in CLASS_NAMES:
            raise ConfigError(f"{path}: there is no class {name!r}: use {', '.join(CLASS_NAMES)}")
        old_class: ClassConfig = getattr(tenancy.classes, name)
        new_class = _with_value(old_class, path, key, text)
        changed = replace(tenancy, classes=replace(tenancy.classes, **{name: new_class}))
        return _checked(changed, tenancy, getattr(old_class, key), getattr(new_class, key), room)
    tenant = find_tenant(tenancy, name)
    if key in _FIXED:
        raise ConfigError(f"{path} cannot be set: use add-tenant, remove-tenant or rotate-key")
    new_tenant = _with_value(tenant, path, key, text)
    changed = _with_tenant(tenancy, new_tenant)
    return _checked(changed, tenancy, getattr(tenant, key), getattr(new_tenant, key), room)


def set_paused(tenancy: Tenancy, kind: str, name: str, paused: bool) -> Change:
    """Return `tenancy` with a "tenant" or a "class" paused or resumed."""
    if kind == "class":
        if name not in CLASS_NAMES:
            raise ConfigError(f"there is no class {name!r}: use {', '.join(CLASS_NAMES)}")
        names = tenancy.paused_classes
        changed = replace(tenancy, paused_classes=_toggled(names, name, paused))
    else:
        names = tenancy.paused_tenants
        find_tenant(tenancy, name)
        changed = replace(tenancy, paused_tenants=_toggled(names, name, paused))
    return Change(changed, name in names, paused)


def add_tenant(tenancy: Tenancy, name: str, key_sha256: str, room: Room) -> Change:
    """Return `tenancy` with a new tenant of default settings; one that is there stays as it is."""
    known = [tenant.name for tenant in tenancy.tenants]
    if name in known:
        if find_tenant(tenancy, name).key_sha256 == (key_sha256,):
            return Change(tenancy, True, True)
        raise ConfigError(f"tenants[{name}] exists with other keys: use rotate-key to change them")
    tenant = TenantConfig(name=name, key_sha256=(key_sha256,))
    changed = replace(tenancy, tenants=(*tenancy.tenants, tenant))
    return _checked(changed, tenancy, False, True, room)


def remove_tenant(tenancy: Tenancy, name: str) -> Change:
    """Return `tenancy` without a tenant; its keys open nothing any more."""
    kept = tuple(tenant for tenant in tenancy.tenants if tenant.name != name)
    if not kept:
        raise ConfigError(f"tenants[{name}] is the last tenant: an engine needs one")
    changed = replace(
        tenancy, tenants=kept, paused_tenants=_toggled(tenancy.paused_tenants, name, False)
    )
    return Change(changed, len(kept) < len(tenancy.tenants), False)


def rotate_key(tenancy: Tenancy, name: str, key_sha256: str, keep_old: bool, room: Room) -> Change:
    """Return `tenancy` with a new key of a tenant, in place of its old ones or before the last."""
    tenant = find_tenant(tenancy, name)
    old = [digest for digest in tenant.key_sha256 if digest != key_sha256]
    keys = (key_sha256, *(old[:1] if keep_old else ()))
    changed = _with_tenant(tenancy, replace(tenant, key_sha256=keys))
    return _checked(changed, tenancy, len(tenant.key_sha256), len(keys), room)


def find_tenant(tenancy: Tenancy, name: str) -> TenantConfig:
    """Return a tenant's settings; raises ConfigError if there is none of that name."""
    for tenant in tenancy.tenants:
        if tenant.name == name:
            return tenant
    raise UnknownTenantError(
        f"there is no tenant {name!r}: `tenants` lists them, add-tenant makes one"
    )


def _with_value(entry: Any, path: str, key: str, text: str) -> Any:
    """Return a frozen record with `key` set to what `text` says."""
    prefix = path.removesuffix(key)
    names = [known.name for known in fields(entry)]
    if key not in names:
        raise ConfigError(f"unknown key {path}: did you mean {prefix}{nearest(key, names)}?")
    table = msgspec.to_builtins(entry) | {key: parse_value(text.strip())}
    try:
        return msgspec.convert(table, type(entry), strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{prefix}{describe(error)}") from error


def _with_tenant(tenancy: Tenancy, changed: TenantConfig) -> Tenancy:
    tenants = (changed if tenant.name == changed.name else tenant for tenant in tenancy.tenants)
    return replace(tenancy, tenants=tuple(tenants))


def _toggled(names: frozenset[str], name: str, present: bool) -> frozenset[str]:
    return names | {name} if present else names - {name}


def _checked(tenancy: Tenancy, known: Tenancy, before: object, after: object, room: Room) -> Change:
    """Return the change from `known`, which was checked, to `tenancy`."""
    faults = list(tenancy.faults(room, known))
    if faults:
        raise ConfigError("; ".join(faults))
    return Change(tenancy, before, after)
