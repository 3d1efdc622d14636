"""What is promised to each class of traffic, and what it may use at the most.

Owns: the classes and their settings with every check, alone and together. Never knows: how a
promise is kept (`core.policy`). Shares are fractions of a replica: of its step tokens, its KV
blocks, its sequences.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import IntEnum

from core.settings.checks import in_range, one_of

MAX_MS = 86_400_000
MAX_WEIGHT = 1000.0
MIN_WEIGHT = 0.001


class TrafficClass(IntEnum):
    """The four classes of traffic; the value is their index in arrays and on the board."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2
    ADMINISTRATIVE = 3

    @property
    def label(self) -> str:
        """The name in configuration, headers and metrics."""
        return self.name.lower()


NUM_CLASSES = len(TrafficClass)
CLASS_NAMES = tuple(c.label for c in TrafficClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassConfig:
    """One class: its promises, its share, its guardrails."""

    weight: float = 1.0
    """Share of the engine among the classes that have work."""
    ttft_ms: int = 0
    """Promise: first token within this time after arrival, ms; 0 = none."""
    itl_ms: int = 0
    """Promise: no longer gap between two tokens, ms; 0 = none."""
    queue_deadline_ms: int = 0
    """A request that has not started after this time is refused, ms; 0 = as in [scheduler]."""
    max_prompt_tokens: int = 0
    """Longest prompt, tokens; 0 = no cap of the class."""
    over_cap: str = "reject"
    """What happens to a longer prompt: `reject`, or `demote` to class standard."""
    reserved_step_fraction: float = 0.0
    """Share of a step's tokens that the class gets before any other, if it has work."""
    reserved_seqs: int = 0
    """Sequences of a replica that others may take only if they can be preempted for it."""
    reserved_kv_fraction: float = 0.0
    """Share of the KV blocks that others may take only if they can be preempted for it."""
    max_step_fraction: float = 1.0
    """Share of the tokens of steps that the class may take at the most; saved up for four steps."""
    max_seqs: int = 0
    """Sequences of a replica at the most; 0 = no cap of the class."""
    max_kv_fraction: float = 1.0
    """Share of the KV blocks that the class may hold at the most."""
    strict_first: bool = False
    """Served before every other class, within its caps."""
    preemptible: bool = False
    """May use what is reserved for others, and is preempted when they want it."""
    pausable: bool = False
    """Decodes may skip steps, so that the promises of others hold."""
    sheddable: bool = True
    """Waiting requests that will miss their promise are refused early."""
    output_quantile: float = 0.8
    """Quantile of past output lengths that admission reserves KV blocks for."""

    def faults(self, path: str) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted; `path` is that of the class."""
        yield from in_range(f"{path}.weight", self.weight, MIN_WEIGHT, MAX_WEIGHT)
        for name in ("ttft_ms", "itl_ms", "queue_deadline_ms"):
            yield from in_range(f"{path}.{name}", getattr(self, name), 0, MAX_MS)
        yield from in_range(f"{path}.max_prompt_tokens", self.max_prompt_tokens, 0, 2**24)
        yield from one_of(f"{path}.over_cap", self.over_cap, ("reject", "demote"))
        for name in ("reserved_step_fraction", "reserved_kv_fraction"):
            yield from in_range(f"{path}.{name}", getattr(self, name), 0.0, 0.9)
        for name in ("max_step_fraction", "max_kv_fraction", "output_quantile"):
            yield from in_range(f"{path}.{name}", getattr(self, name), 0.01, 1.0)
        for name in ("reserved_seqs", "max_seqs"):
            yield from in_range(f"{path}.{name}", getattr(self, name), 0, 4096)
        yield from self._contradictions(path)

    def _contradictions(self, path: str) -> Iterator[str]:
        """Yield one line for each pair of keys that cannot both hold."""
        for reserved, cap in (
            ("reserved_step_fraction", "max_step_fraction"),
            ("reserved_kv_fraction", "max_kv_fraction"),
            ("reserved_seqs", "max_seqs"),
        ):
            low, high = getattr(self, reserved), getattr(self, cap)
            if low > high and (cap != "max_seqs" or high):
                yield f"{path}.{reserved} = {low} exceeds {path}.{cap} = {high}"
        if self.over_cap == "demote" and not self.max_prompt_tokens:
            yield f"{path}.over_cap = 'demote' needs {path}.max_prompt_tokens"
        if self.pausable and self.itl_ms:
            yield f"{path}.pausable contradicts {path}.itl_ms = {self.itl_ms}: a pause is a gap"


def _interactive() -> ClassConfig:
    return ClassConfig(
        weight=8.0,
        ttft_ms=2000,
        itl_ms=250,
        queue_deadline_ms=30_000,
        reserved_step_fraction=0.5,
        reserved_seqs=4,
        reserved_kv_fraction=0.1,
        output_quantile=0.95,
    )


def _standard() -> ClassConfig:
    return ClassConfig(weight=4.0, ttft_ms=60_000, itl_ms=250)


def _batch() -> ClassConfig:
    return ClassConfig(preemptible=True, pausable=True, output_quantile=0.5)


def _administrative() -> ClassConfig:
    return ClassConfig(
        ttft_ms=1000,
        itl_ms=250,
        queue_deadline_ms=30_000,
        reserved_seqs=1,
        reserved_kv_fraction=0.02,
        max_step_fraction=0.1,
        max_seqs=2,
        max_kv_fraction=0.05,
        strict_first=True,
        sheddable=False,
        output_quantile=0.95,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassesConfig:
    """The four classes, a table each."""

    interactive: ClassConfig = field(default_factory=_interactive)
    standard: ClassConfig = field(default_factory=_standard)
    batch: ClassConfig = field(default_factory=_batch)
    administrative: ClassConfig = field(default_factory=_administrative)

    def of(self, traffic_class: TrafficClass) -> ClassConfig:
        """Return the settings of one class."""
        config: ClassConfig = getattr(self, traffic_class.label)
        return config

    def faults(self) -> Iterator[str]:
        """Yield one line for each key or combination that cannot be accepted."""
        for entry in fields(self):
            yield from getattr(self, entry.name).faults(f"classes.{entry.name}")
        for key in ("reserved_step_fraction", "reserved_kv_fraction"):
            total = sum(getattr(self.of(c), key) for c in TrafficClass)
            if total > 1.0:
                yield f"classes: the reserves {key} add up to {total:.3g}, more than 1"
        if self.standard.over_cap == "demote":
            yield "classes.standard.over_cap = 'demote' would demote to itself: use reject"
