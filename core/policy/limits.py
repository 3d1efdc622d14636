"""The promises and caps in force, by class and by tenant.

Owns: finding the settings of a request. Never knows: how they are kept, or how they change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.tenancy import ClassConfig, ClassesConfig, TenantConfig, TrafficClass


@dataclass(frozen=True, slots=True)
class Limits:
    """One version of the settings of all classes and tenants; replaced as a whole."""

    classes: ClassesConfig = field(default_factory=ClassesConfig)
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()  # tenants that start nothing

    def tenant(self, name: str) -> TenantConfig:
        """Return the settings of a tenant; one that is not listed has the defaults."""
        return self.tenants.get(name) or TenantConfig(name=name)

    def of(self, traffic_class: int) -> ClassConfig:
        """Return the settings of a class."""
        return self.classes.of(TrafficClass(traffic_class))
