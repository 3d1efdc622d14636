"""Run-time tenants and rotated keys: what outlives the engine, beside its configuration file.

Owns: `tenants.json` in the state directory (0600, replaced in one step), and laying it over what
the file says at the next start. Never knows: commands, or the tenant directory. Kept are tenants
that were added, with all their settings, the names of those that were removed, and keys that were
rotated. Other changes of configured tenants, and of classes, last until the engine stops.
"""

import logging
import os
from dataclasses import replace
from pathlib import Path

import msgspec

from core.config import HeadraceConfig
from core.errors import ConfigError
from core.tenancy import TenantConfig
from core.tenant_directory import configured_tenancy

FILE_VERSION = 1

log = logging.getLogger(__name__)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between what runs and what the configuration says."""

    version: int = FILE_VERSION
    added: tuple[TenantConfig, ...] = ()
    removed: tuple[str, ...] = ()
    keys: dict[str, tuple[str, ...]] = {}


class KeptTenants:
    """The file of one engine."""

    def __init__(self, directory: Path, config: HeadraceConfig) -> None:
        """Keep beside `config` in `directory`, which is made when there is something to keep."""
        self._path = directory / "tenants.json"
        self._config = config
        self._configured = configured_tenancy(config).tenants

    def restored(self) -> HeadraceConfig:
        """Return the configuration with what was kept; raises ConfigError naming the file if the
        two do not go together.
        """
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=Kept)
        except FileNotFoundError:
            return self._config
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{self._path} cannot be read: {error}") from error
        tenants = laid_over(self._configured, kept)
        log.info("tenants and keys changed at run time are in force again: %s", self._path)
        try:
            return replace(self._config, tenants=tenants).check()
        except ConfigError as error:
            raise ConfigError(f"{self._path}, over the configuration: {error}") from error

    def save(self, tenants: tuple[TenantConfig, ...]) -> bool:
        """Keep what of `tenants` the configuration does not say; False = it cannot be written."""
        kept = difference(self._configured, tenants)
        try:
            if kept == Kept():
                self._path.unlink(missing_ok=True)
                return True
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = self._path.with_suffix(".new")
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(msgspec.json.encode(kept))
            temporary.replace(self._path)
        except OSError as error:
            log.error("%s cannot be written: %s", self._path, error)
            return False
        return True


def difference(configured: tuple[TenantConfig, ...], tenants: tuple[TenantConfig, ...]) -> Kept:
    """Return what was added to, removed from and rotated in `configured`."""
    known = {tenant.name: tenant for tenant in configured}
    present = {tenant.name for tenant in tenants}
    return Kept(
        added=tuple(tenant for tenant in tenants if tenant.name not in known),
        removed=tuple(name for name in known if name not in present),
        keys={
            tenant.name: tenant.key_sha256
            for tenant in tenants
            if tenant.name in known and tenant.key_sha256 != known[tenant.name].key_sha256
        },
    )


def laid_over(configured: tuple[TenantConfig, ...], kept: Kept) -> tuple[TenantConfig, ...]:
    """Return `configured` with what was kept; a tenant that is now configured too stays so."""
    known = {tenant.name for tenant in configured}
    tenants = [
        replace(tenant, key_sha256=kept.keys.get(tenant.name, tenant.key_sha256))
        for tenant in configured
        if tenant.name not in kept.removed
    ]
    return (*tenants, *(tenant for tenant in kept.added if tenant.name not in known))
