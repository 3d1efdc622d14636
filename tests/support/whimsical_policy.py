"""First come, first served, with preemptions that nobody needs: to see that they harm nobody.

Owns: a seeded choice of victims and of how they give memory back. Never knows: why anybody would.
"""

from collections.abc import Sequence
from random import Random

from core.policy.base import Preemption, Relief, ReplicaLoad, Step
from core.policy.fcfs import FcfsPolicy
from core.policy.settings import PolicySettings
from core.request import Request
from core.scheduler.settings import EngineSettings

WHIM_SHARE = 0.15  # of the steps


class WhimsicalPolicy(FcfsPolicy):
    """`whims` is the seed of all choices."""

    def __init__(self, settings: EngineSettings, whims: int) -> None:
        super().__init__(
            PolicySettings(
                max_num_partial_prefills=settings.max_num_partial_prefills,
                kv_headroom_fraction=settings.kv_headroom_fraction,
            )
        )
        self._random = Random(whims)

    def fill(self, step: Step) -> None:
        """Now and then take memory from somebody first."""
        candidates = step.running()
        if candidates and self._random.random() < WHIM_SHARE:
            whim = self._whim(self._random.choice(candidates))
            step.preempt(whim.request, whim.relief, whim.num_blocks)
        super().fill(step)

    def victim(
        self, candidates: Sequence[Request], beneficiary: Request, load: ReplicaLoad
    ) -> Preemption | None:
        """Return the latest arrival, sometimes nobody."""
        if not candidates or self._random.random() < WHIM_SHARE:
            return None
        return self._whim(max(candidates, key=self.place))

    def _whim(self, request: Request) -> Preemption:
        relief = self._random.choice(list(Relief))
        return Preemption(request, relief, self._random.choice([0, 0, 1, 2, 3]))
