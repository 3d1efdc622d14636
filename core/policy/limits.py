"""The promises and caps in force, by class and by tenant.

Owns: finding the settings of a request. Never knows: how they are kept, or how they change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from core.tenancy.tenancy import Tenancy
from core.tenancy.tenants import TenantConfig


@dataclass(frozen=True, slots=True)
class Limits:
    """One version of the settings of all classes and tenants; replaced as a whole."""

    classes: ClassesConfig = field(default_factory=ClassesConfig)
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()  # tenants that start nothing
    paused_classes: frozenset[str] = frozenset()  # classes that start nothing

    @classmethod
    def of_tenancy(cls, tenancy: Tenancy) -> "Limits":
        """Return the limits that `tenancy` sets."""
        return cls(
            tenancy.classes,
            {tenant.name: tenant for tenant in tenancy.tenants},
            tenancy.paused_tenants,
            tenancy.paused_classes,
        )

    def tenant(self, name: str) -> TenantConfig:
        """Return the settings of a tenant; one that is not listed has the defaults."""
        return self.tenants.get(name) or _unlisted(name)

    def of(self, traffic_class: int) -> ClassConfig:
        """Return the settings of a class."""
        return self.classes.of(TrafficClass(traffic_class))


@lru_cache(maxsize=1024)
def _unlisted(name: str) -> TenantConfig:
    return TenantConfig(name=name)
