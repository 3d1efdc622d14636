"""What of a step belongs to each class: kept for it before any other, and at the most.

Owns: reserves and caps of classes in tokens of a step, and what a class with a cap has saved. Never
knows: who is served with them.

A cap is a share of what all steps take. What a class leaves of it is saved for `SAVED_STEPS` steps,
so that one short prompt, of a probe, say, is computed in one step and not in as many as its share
of a small step makes it. Decodes are never held back: what they take beyond a cap is no debt.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from core.clock import NS_PER_MS
from core.policy.base import DecodeBatch
from core.policy.limits import Limits
from core.policy.queues.flows import NO_PROMISE_NS, NOBODY_NS
from core.tenancy.classes import NUM_CLASSES, TrafficClass

UNLIMITED = 1 << 40
RESERVE_AFTER = 0.5  # of the promised time to the first token
SAVED_STEPS = 4
CLASSES = tuple(range(NUM_CLASSES))


class StepShares:
    """What of a step belongs to each class: at the most, and before any other."""

    def __init__(self, limits: Limits, tile: int) -> None:
        """Take the settings of all classes; a step has `tile` tokens for each, whatever its cap."""
        self._tile = tile
        configs = [limits.of(each) for each in TrafficClass]
        self.strict = [c for c, config in enumerate(configs) if config.strict_first]
        self._can_be_dropped = [config.preemptible for config in configs]
        self._has_memory = [config.reserved_kv_fraction > 0 for config in configs]
        self._reserved = [config.reserved_step_fraction for config in configs]
        self.reserving = [c for c, fraction in enumerate(self._reserved) if fraction]
        self._capped = {
            c: config.max_step_fraction
            for c, config in enumerate(configs)
            if config.max_step_fraction != 1
        }
        self._opened: dict[int, StepTokens] = {}  # by replica: of the last step
        self._patience_ns = [
            int((1 - RESERVE_AFTER) * config.ttft_ms * NS_PER_MS) or NOBODY_NS for config in configs
        ]

    def needs_reserve(self, traffic_class: int, left_ns: int) -> bool:
        """Tell whether the reserve of a class acts for who is due in `left_ns`."""
        return left_ns <= self._patience_ns[traffic_class] or left_ns > NO_PROMISE_NS // 2

    def can_be_dropped_for(self, traffic_class: int) -> list[int]:
        """Return the classes that are preempted when one of `traffic_class` lacks memory."""
        if self._can_be_dropped[traffic_class]:
            return []
        return [c for c in CLASSES if self._can_be_dropped[c]]

    def have_memory(self) -> list[int]:
        """Return the classes that have memory reserved."""
        return [c for c in CLASSES if self._has_memory[c]]

    def open(self, decodes: DecodeBatch, capacity: int, replica: int) -> "StepTokens":
        """Share out a step of `capacity` tokens, of which the `decodes` have theirs."""
        used = np.bincount(decodes.traffic_class, minlength=NUM_CLASSES).tolist()
        before, most = self._opened.get(replica), [UNLIMITED] * NUM_CLASSES
        for c, share in self._capped.items():
            saved = max(0, before.most[c]) if before else 0
            most[c] = self._cap(int(share * capacity), saved) - used[c]
        reserved = [-n for n in used]
        for c in self.reserving:
            reserved[c] += ceil(self._reserved[c] * capacity)
        opened = self._opened[replica] = StepTokens(self, reserved, most)
        return opened

    def _cap(self, share: int, saved: int) -> int:
        return max(self._tile, min(SAVED_STEPS * share, share + saved))


@dataclass(slots=True)
class StepTokens:
    """Tokens of a step for each class: still kept for it, and still allowed."""

    shares: StepShares  # what they follow from
    reserved: list[int]
    most: list[int]

    def take(self, traffic_class: int, num_tokens: int) -> None:
        """Take in that the class was granted `num_tokens`."""
        self.reserved[traffic_class] -= num_tokens
        self.most[traffic_class] -= num_tokens
