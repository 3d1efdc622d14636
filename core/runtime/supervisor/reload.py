"""`reload`: the configuration file is read again, and what may change at run time is in force.

Owns: which keys those are: all of classes and tenants, and the log level. Never knows: what a key
means. It is all or nothing: a file with any fault changes nothing, and every fault is named with
its key path. What differs and needs a restart is named, at every reload until then.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from core.config.headrace import HeadraceConfig
from core.errors import ConfigError
from core.runtime.supervisor.log_levels import LogLevels
from core.runtime.supervisor.tenants import Record, TenantCommands
from ipc.control.declaration import ArgumentError

LOG_LEVEL = "supervision.log_level"
TENANCY_TABLES = ("classes", "tenants")


class Reload:
    """Reads the configuration with `load`, which raises ConfigError, and applies it."""

    def __init__(
        self,
        started_with: HeadraceConfig,
        load: Callable[[], HeadraceConfig],
        tenants: TenantCommands,
        log_levels: LogLevels,
    ) -> None:
        self._started_with = started_with
        self._configured_level = started_with.supervision.log_level
        self._load = load
        self._tenants = tenants
        self._log_levels = log_levels

    def carry_out(self) -> Record:
        """Apply what the file says now and return the answer; raises ArgumentError."""
        try:
            config = self._load()
            answer = self._tenants.reload(config)
        except ConfigError as error:
            raise ArgumentError(f"reload: {error}") from None
        changed, level = list(answer["changed"]), config.supervision.log_level  # type: ignore[call-overload]
        if level != self._configured_level:
            self._configured_level = level
            self._log_levels.set(level)
            changed.append(LOG_LEVEL)
        others = [path for path in differing(self._started_with, config) if path != LOG_LEVEL]
        return answer | {"changed": changed, "needs_restart": others}


def differing(one: HeadraceConfig, other: HeadraceConfig) -> list[str]:
    """Return the paths of the keys outside classes and tenants that two configurations have
    otherwise.
    """
    return list(_differing(msgspec.to_builtins(one), msgspec.to_builtins(other), ""))


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], path: str) -> Iterator[str]:
    for key, value in one.items():
        if isinstance(value, dict) and key not in TENANCY_TABLES:
            yield from _differing(value, other[key], f"{path}{key}.")
        elif key not in TENANCY_TABLES and value != other[key]:
            yield f"{path}{key}"
