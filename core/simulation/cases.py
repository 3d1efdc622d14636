"""From a configuration and a workload to what a simulation needs.

Owns: what a configuration leaves open on a machine that is only modelled, and how the promises and
names of configuration and workload are brought together. Never knows: argparse, files, policies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from core.config.file import apply_override, config_from_table
from core.config.headrace import HeadraceConfig
from core.policy.cost_model import CostBasis
from core.policy.limits import Limits
from core.scheduler.settings import EngineSettings
from core.simulation.hardware import Hardware
from core.simulation.noise import NoiseSettings
from core.simulation.run import END_OF_TEXT, SimulationSettings
from core.simulation.workload import Promise, Workload, promises_of, with_default_classes
from core.tenancy.classes import ClassConfig, TrafficClass
from core.tenancy.tenants import DEFAULT_TENANT

GPU_DEFAULTS = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
MS_PER_S = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A modelled machine, and how its steps differ from the model."""

    name: str
    hardware: Hardware
    noise: NoiseSettings
    overhead_ns: int = 0  # between two steps: scheduler and channels
    is_gpu: bool = True  # its steps are larger than what an engine on a CPU is configured for
    basis: CostBasis | None = None  # what its executors bring along; None: policies are told all


def configuration(
    table: Mapping[str, Any], overrides: list[str], promised: Mapping[TrafficClass, Promise]
) -> HeadraceConfig:
    """Return the configuration in `table` with single keys and promises changed.

    Raises ConfigError.
    """
    changed: dict[str, Any] = {key: _copied(value) for key, value in table.items()}
    for override in overrides:
        apply_override(changed, override)
    config = config_from_table(changed)
    classes = config.classes
    for each, promise in promised.items():
        classes = replace(classes, **{each.label: promising(classes.of(each), promise)})
    return replace(config, classes=classes).check()


def promising(config: ClassConfig, promise: Promise) -> ClassConfig:
    """Return a class with another promise; who is promised gaps is never paused."""
    itl_ms = _ms(promise.itl_s)
    pausable = config.pausable and not itl_ms
    return replace(config, ttft_ms=_ms(promise.ttft_s), itl_ms=itl_ms, pausable=pausable)


def for_machine(table: Mapping[str, Any], machine: Machine, longest_tokens: int) -> dict[str, Any]:
    """Return `table` where what it leaves open is as for a GPU and for this workload."""
    if not machine.is_gpu:
        return dict(table)
    engine = GPU_DEFAULTS | {"max_model_len": longest_tokens} | dict(table.get("engine", {}))
    return dict(table) | {"engine": engine}


def with_configured(workload: Workload, config: HeadraceConfig) -> Workload:
    """Return `workload` with the promises of the classes, and with the classes of the tenants."""
    tenants = {tenant.name: tenant for tenant in config.tenants}
    with_classes = with_default_classes(workload, tenants)
    return with_classes.with_promises(promises_of(config.classes))


def unknown_tenants(workload: Workload, config: HeadraceConfig) -> list[str]:
    """Return tenants of the workload that the configuration does not list though it lists some."""
    listed = {tenant.name for tenant in config.tenants}
    return sorted(set(workload.tenants) - listed - {DEFAULT_TENANT}) if listed else []


def settings_of(
    config: HeadraceConfig, machine: Machine, workload: Workload, *, max_tokens: int, seed: int
) -> SimulationSettings:
    """Return machine and engine; the prefix cache is of use only if the trace tells contents."""
    engine = EngineSettings.from_config(
        config.engine,
        config.scheduler,
        config.policy,
        Limits(config.classes, {tenant.name: tenant for tenant in config.tenants}),
        max_model_len=config.engine.max_model_len,
        eos_token_ids=(END_OF_TEXT,),
        digest_secret=b"",
    )
    has_contents = engine.prefix_cache and bool(workload.hash_ids)
    return SimulationSettings(
        engine=replace(engine, prefix_cache=has_contents),
        hardware=machine.hardware,
        num_blocks=config.engine.num_kv_blocks or machine.hardware.kv_tokens // engine.block_size,
        num_replicas=config.engine.replicas,
        max_tokens=max_tokens,
        noise=machine.noise,
        overhead_ns=machine.overhead_ns,
        as_configured=not machine.is_gpu,
        basis=machine.basis,
        seed=seed,
    )


def _ms(seconds: float) -> int:
    """Return milliseconds; a promise is at least one, 0 is none."""
    return max(1, round(seconds * MS_PER_S)) if seconds else 0


def _copied(value: Any) -> Any:
    """Return a copy of nested tables, so that an override changes only this one."""
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, dict) else value
