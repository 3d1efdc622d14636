"""What one tenancy says otherwise than another, as data that can be kept, and laid over a third.

Owns: the form of a difference, and both directions. Never knows: why two tenancies differ. Two
uses: what was changed at run time (running less configured) outlives the engine, and a
configuration file that has changed (new less old) is laid over what runs, so that a reload takes
back nothing that was changed by command. Only what differs is in it: a setting that nobody changed
follows the file.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import msgspec

from core.errors import ConfigError
from core.tenancy.classes import CLASS_NAMES
from core.tenancy.tenancy import Tenancy
from core.tenancy.tenants import TenantConfig

Values = dict[str, Any]


class Difference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changed keys by name of class and tenant; those of `added` tenants are all but defaults."""

    classes: dict[str, Values] = {}
    tenants: dict[str, Values] = {}
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    paused_tenants: tuple[str, ...] = ()
    paused_classes: tuple[str, ...] = ()


def difference(old: Tenancy, new: Tenancy) -> Difference:
    """Return what `new` says otherwise than `old`."""
    before = {tenant.name: tenant for tenant in old.tenants}
    present = {tenant.name for tenant in new.tenants}
    tenants = {
        tenant.name: _changed(before.get(tenant.name, TenantConfig(name=tenant.name)), tenant)
        for tenant in new.tenants
    }
    classes = {
        name: _changed(getattr(old.classes, name), getattr(new.classes, name))
        for name in CLASS_NAMES
    }
    return Difference(
        classes={name: values for name, values in classes.items() if values},
        tenants={name: values for name, values in tenants.items() if values},
        added=tuple(tenant.name for tenant in new.tenants if tenant.name not in before),
        removed=tuple(name for name in before if name not in present),
        paused_tenants=tuple(sorted(new.paused_tenants - old.paused_tenants)),
        paused_classes=tuple(sorted(new.paused_classes - old.paused_classes)),
    )


def laid_over(tenancy: Tenancy, changes: Difference) -> Tenancy:
    """Return `tenancy` with `changes`; those of tenants that it has not are left out.

    Raises ConfigError if a value has not the type of its key. The whole may be unacceptable.
    """
    tenants = {tenant.name: tenant for tenant in tenancy.tenants}
    for name in changes.removed:
        tenants.pop(name, None)
    for name in changes.added:
        tenants[name] = _with(TenantConfig(name=name), changes.tenants.get(name, {}), "tenants")
    for name, values in changes.tenants.items():
        if name in tenants and name not in changes.added:
            tenants[name] = _with(tenants[name], values, "tenants")
    classes = {
        name: _with(getattr(tenancy.classes, name), values, "classes")
        for name, values in changes.classes.items()
        if name in CLASS_NAMES
    }
    paused = {*tenancy.paused_tenants, *changes.paused_tenants}
    return Tenancy(
        classes=replace(tenancy.classes, **classes),
        tenants=tuple(tenants.values()),
        paused_tenants=frozenset(paused & tenants.keys()),
        paused_classes=tenancy.paused_classes | frozenset(changes.paused_classes),
    )


def to_json(changes: Difference) -> str:
    """Return a difference as text; "{}" if there is none."""
    return msgspec.json.encode(changes).decode()


def from_json(text: str) -> Difference:
    """Return the difference in a text; raises ConfigError."""
    try:
        return msgspec.json.decode(text, type=Difference)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"not a difference of tenancies: {error}") from error


def changed_paths(changes: Difference) -> list[str]:
    """Return the key paths that a difference touches."""
    paths = [f"tenants[{name}]" for name in (*changes.added, *changes.removed)]
    for table, entries in (("classes.{}", changes.classes), ("tenants[{}]", changes.tenants)):
        for name, values in entries.items():
            if name not in changes.added:
                paths += [f"{table.format(name)}.{key}" for key in values]
    return paths


def _changed(old: object, new: object) -> Values:
    """Return the fields of a record that another of its type has otherwise."""
    if new == old:  # of thousands of tenants most are
        return {}
    return {
        entry.name: getattr(new, entry.name)
        for entry in fields(new)  # type: ignore[arg-type]
        if getattr(new, entry.name) != getattr(old, entry.name)
    }


def _with(entry: Any, values: Mapping[str, object], table: str) -> Any:
    try:
        return msgspec.convert(msgspec.to_builtins(entry) | dict(values), type(entry), strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{table}: {error}") from error
