"""The KV blocks that classes reserve, and to whom they are lent.

Owns: how much of a pool is kept for classes that hold less than they reserve. Never knows: who is
served next, what requests will grow to, or who gives blocks back.

    a reserve is lent       to                                          until
    always                  whoever is droppable                        the class wants it: a step
    if its class is quiet   whoever can still be preempted, as well     the same
    never, if strict first

A class is quiet that has neither started anything for a while nor had to wait for memory. So what
nobody uses does not lie idle, and what is wanted again is called back within the same step.
"""

from collections.abc import Sequence

from core.clock import NS_PER_S
from core.policy.limits import Limits
from core.tenancy.classes import NUM_CLASSES, TrafficClass

QUIET_NS = 60 * NS_PER_S
NEVER_NS = -(1 << 62)


class Reserves:
    """The reserves of all classes; `held` below are the blocks of each class on one replica."""

    def __init__(self, limits: Limits) -> None:
        """Start with all classes quiet."""
        self._wanted_ns = [NEVER_NS] * NUM_CLASSES
        self.configure(limits)

    def configure(self, limits: Limits) -> None:
        """Take over the reserves from now on."""
        configs = [limits.of(each) for each in TrafficClass]
        self._fractions = [config.reserved_kv_fraction for config in configs]
        self._reserving = [c for c, fraction in enumerate(self._fractions) if fraction]
        self._is_strict = [config.strict_first for config in configs]

    def wanted(self, traffic_class: int, now_ns: int) -> None:
        """Note that the class started something, or lacks memory for it."""
        self._wanted_ns[traffic_class] = now_ns

    def has_any(self, traffic_class: int) -> bool:
        """Tell whether the class reserves memory at all."""
        return self._fractions[traffic_class] > 0

    def takes(self, traffic_class: int, wanted: int, held: Sequence[int], num_blocks: int) -> bool:
        """Tell whether the reserve of a class takes `wanted` blocks more, in such a pool."""
        reserved = self._reserved(traffic_class, num_blocks)
        return reserved > 0 and held[traffic_class] + wanted <= reserved

    def kept_from(
        self,
        traffic_class: int,
        held: Sequence[int],
        num_blocks: int,
        now_ns: int,
        *,
        is_droppable: bool,
        is_preemptible: bool,
    ) -> int:
        """Return the blocks that others reserve, do not hold, and do not lend to a request of
        `traffic_class` that can be dropped or preempted as told.
        """
        kept = 0
        for other in self._reserving:
            is_quiet = now_ns - self._wanted_ns[other] > QUIET_NS
            borrows = is_droppable or (is_quiet and is_preemptible)
            is_lent = borrows and not self._is_strict[other]
            if other != traffic_class and not is_lent:
                kept += max(0, self._reserved(other, num_blocks) - held[other])
        return kept

    def _reserved(self, traffic_class: int, num_blocks: int) -> int:
        return int(self._fractions[traffic_class] * num_blocks)
