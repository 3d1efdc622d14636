"""Which classes stand before which, and what they leave of the rate.

Owns: what follows from the settings of the classes alone. Never knows: who waits, how fast prompts
are. A class goes before another one, whatever is due when, if it is strictly first or its promise
is shorter; who has made no promise comes last. It is looked at what is configured, not at what
clients ask for: a class is not shorter for a client in haste.
"""

from core.policy.limits import Limits
from core.tenancy.classes import ClassConfig, TrafficClass

NEVER_MS = 1 << 40


class Precedence:
    """That of the four classes."""

    def __init__(self, limits: Limits) -> None:
        """Work it out; it holds as long as `limits`."""
        configs = [limits.of(each) for each in TrafficClass]
        self._before = [[_goes_before(one, other) for one in configs] for other in configs]
        self._share = _shares(configs)
        self.left = [self._left_for(c, configs) for c in TrafficClass]
        """By class: the share of the rate that all others leave."""
        self.waits_for_windows = [
            any(
                before and not other.strict_first
                for before, other in zip(row, configs, strict=True)
            )
            for row in self._before
        ]
        """By class: whether others go before it that may be ahead of their shares."""

    def goes_before(self, first: TrafficClass, second: TrafficClass) -> bool:
        """Tell whether `first` stands before `second`."""
        return self._before[second][first]

    def share(self, traffic_class: TrafficClass) -> float:
        """Return what a class can have of the rate at the least."""
        return self._share[traffic_class]

    def _left_for(self, own: TrafficClass, configs: list[ClassConfig]) -> float:
        taken = 0.0
        for each, config in zip(TrafficClass, configs, strict=True):
            if each == own:
                continue
            if config.strict_first:
                taken += config.max_step_fraction
            elif self._before[own][each]:
                taken += self._share[each]
            else:
                taken += config.reserved_step_fraction
        return max(0.0, 1 - taken)


def _goes_before(first: ClassConfig, second: ClassConfig) -> bool:
    if first is second or second.strict_first:
        return False
    return first.strict_first or (first.ttft_ms or NEVER_MS) < (second.ttft_ms or NEVER_MS)


def _shares(configs: list[ClassConfig]) -> list[float]:
    total = sum(config.weight for config in configs)
    return [max(config.weight / total, config.reserved_step_fraction) for config in configs]
