"""The whole configuration as frozen data, with every check.

One dataclass a TOML table, one field a key, a docstring under each field with its unit; sections
have files beside this one, classes and tenants are in `core.tenancy`. Reading files and `--set`
lives in `core.config.file`: here is only what is acceptable, and all that is wrong is said at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from core.config.engine import EngineConfig
from core.config.processes import AdminConfig, HttpConfig, SupervisionConfig, TokenizerConfig
from core.config.scheduling import PolicyConfig, SchedulerConfig
from core.config.tracing import TracingConfig
from core.errors import ConfigError
from core.settings.checks import is_name
from core.tenancy.classes import ClassesConfig
from core.tenancy.tenancy import Room, Tenancy
from core.tenancy.tenants import DEFAULT_TENANT, TenantConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadraceConfig:
    """Everything; `check` raises with all faults listed."""

    name: str = "default"
    """Name of this engine and of its run directory; at most 32 characters."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    classes: ClassesConfig = field(default_factory=ClassesConfig)
    tenants: tuple[TenantConfig, ...] = ()
    """Empty = one tenant `default`, no keys; allowed on loopback addresses only."""

    @property
    def tenancy(self) -> Tenancy:
        """What is promised at the start; without tenants there is one, `default`."""
        tenants = self.tenants or (TenantConfig(name=DEFAULT_TENANT),)
        return Tenancy(classes=self.classes, tenants=tenants)

    def faults(self) -> Iterator[str]:
        """Yield one line for each key or combination that cannot be accepted."""
        if not is_name(self.name, 32, "-_"):
            yield f"name = {self.name!r} must be 1 to 32 letters, digits, '-' or '_'"
        for part in (
            self.engine,
            self.scheduler,
            self.policy,
            self.tokenizer,
            self.http,
            self.admin,
            self.supervision,
            self.tracing,
        ):
            yield from part.faults()
        yield from self.tenancy.faults(Room(self.engine.replicas, self.engine.max_num_seqs))
        if not any(tenant.key_sha256 for tenant in self.tenants) and self.http.host not in (
            "127.0.0.1",
            "::1",
            "localhost",
        ):
            yield (
                f"http.host = {self.http.host!r} is reachable from outside but no tenant has an"
                " API key"
            )
        if self.engine.max_model_len > self.tokenizer.arena_tokens:
            yield (
                f"tokenizer.arena_tokens = {self.tokenizer.arena_tokens} cannot hold one request of"
                f" engine.max_model_len = {self.engine.max_model_len}"
            )

    def check(self) -> "HeadraceConfig":
        """Return self, or raise ConfigError naming every fault."""
        faults = list(self.faults())
        if faults:
            raise ConfigError("; ".join(faults))
        return self
