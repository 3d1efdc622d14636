"""The small languages of the command line: who is a tenant, which classes, which promises, sweeps.

Owns: their forms and what is said about text that has none of them. Never knows: argparse, files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from core.errors import ConfigError
from core.simulation.traces import Trace
from core.simulation.workload import (
    Promise,
    Workload,
    with_class_mix,
    with_one_tenant,
    with_zipf_tenants,
)
from core.tenancy.classes import TrafficClass

MAX_TENANTS = 1000
CLASS_SEED, TENANT_SEED = 101, 102  # added to the seed, so that both draws differ


@dataclass(frozen=True, slots=True)
class Sweep:
    """A configuration key and the values it takes in turn."""

    key: str
    values: tuple[str, ...]


def assign_tenants(
    workload: Workload, form: str, trace: Trace, seed: int, configured: Sequence[str] = ()
) -> Workload:
    """Apply `tenant` (the trace's column), `one`, or `zipf:N`; raises ConfigError.

    Drawn tenants have the `configured` names, as long as there are any.
    """
    if form == "tenant":
        if not trace.has_tenants:
            raise ConfigError("--tenants-from tenant: the trace has no column tenant")
        return workload
    if form == "one":
        return with_one_tenant(workload)
    kind, _, count = form.partition(":")
    if kind != "zipf" or not count.isdecimal() or not 1 <= int(count) <= MAX_TENANTS:
        raise ConfigError(
            f"--tenants-from {form!r} is none of tenant, one, zipf:N with N up to {MAX_TENANTS}"
        )
    return with_zipf_tenants(workload, int(count), seed + TENANT_SEED, configured)


def assign_classes(workload: Workload, form: str, trace: Trace, seed: int) -> Workload:
    """Apply `class` (the trace's column) or `mix:interactive=1,batch=2`; raises ConfigError."""
    if form == "class":
        if not trace.has_classes:
            raise ConfigError("--classes-from class: the trace has no column class")
        return workload
    kind, _, shares = form.partition(":")
    if kind != "mix":
        raise ConfigError(f"--classes-from {form!r} is neither class nor mix:CLASS=SHARE,…")
    return with_class_mix(workload, class_shares(shares), seed + CLASS_SEED)


def class_shares(text: str) -> dict[TrafficClass, float]:
    """Read `interactive=1,batch=2`; raises ConfigError."""
    shares = {}
    for item in text.split(","):
        name, _, share = item.partition("=")
        shares[traffic_class(name, "--classes-from")] = number(share, "--classes-from")
    if sum(shares.values()) <= 0:
        raise ConfigError(f"--classes-from mix:{text}: the shares add up to nothing")
    return shares


def promises(texts: list[str]) -> dict[TrafficClass, Promise]:
    """Read `interactive=1.5/0.05`, seconds to the first token and between tokens, 0 = none."""
    promised = {}
    for text in texts:
        name, _, times = text.partition("=")
        ttft, slash, itl = times.partition("/")
        if not slash:
            raise ConfigError(f"--promise {text!r} is not of the form CLASS=TTFT_S/ITL_S")
        promise = Promise(number(ttft, "--promise"), number(itl, "--promise"))
        promised[traffic_class(name, "--promise")] = promise
    return promised


def sweep(text: str) -> Sweep:
    """Read `key.path=a,b,c`; raises ConfigError."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values:
        raise ConfigError(f"--sweep {text!r} is not of the form KEY=A,B,C")
    return Sweep(key.strip(), tuple(value.strip() for value in values.split(",")))


def traffic_class(name: str, flag: str) -> TrafficClass:
    """Return the class of that name; raises ConfigError."""
    try:
        return TrafficClass[name.strip().upper()]
    except KeyError:
        names = ", ".join(each.label for each in TrafficClass)
        raise ConfigError(f"{flag}: {name!r} is none of {names}") from None


def number(text: str, flag: str) -> float:
    """Return a number ≥ 0; raises ConfigError."""
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{flag}: {text!r} is not a number") from None
    if not isfinite(value) or value < 0:
        raise ConfigError(f"{flag}: {text} is not a number ≥ 0")
    return value
