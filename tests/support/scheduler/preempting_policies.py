"""First come, first served, with preemptions that a test or a seed asks for.

Owns: who gives memory back, and how. Never knows: why anybody would.
"""

from collections.abc import Callable, Sequence
from random import Random

from core.policy.base import Preemption, Relief, ReplicaLoad, Step
from core.policy.plain.fcfs import FcfsPolicy
from core.policy.settings import PolicySettings
from core.request import Request
from core.scheduler.settings import EngineSettings

WHIM_SHARE = 0.15  # of the steps


def settings_of(settings: EngineSettings) -> PolicySettings:
    """Return what a policy is told of the engine's settings."""
    return PolicySettings(
        max_num_partial_prefills=settings.max_num_partial_prefills,
        kv_headroom_fraction=settings.kv_headroom_fraction,
    )


class ScriptedPolicy(FcfsPolicy):
    """Carries out `orders` at the next step, and what `asked` returns at each; victims of pressure
    give `relief`, `num_blocks`.
    """

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings_of(settings))
        self.orders: list[Preemption] = []
        self.asked: Callable[[], list[Preemption]] = list
        self.relief = Relief.RECOMPUTE
        self.num_blocks = 0
        self.grants = True

    def fill(self, step: Step) -> None:
        """Preempt first, then grant if that is wanted."""
        self.orders += self.asked()
        while self.orders:
            order = self.orders.pop()
            step.preempt(order.request, order.relief, order.num_blocks)
        if self.grants:
            super().fill(step)

    def victim(
        self, candidates: Sequence[Request], beneficiary: Request, load: ReplicaLoad
    ) -> Preemption | None:
        """Return the latest arrival."""
        latest = max(candidates, key=self.place)
        return Preemption(latest, self.relief, self.num_blocks)


class WhimsicalPolicy(FcfsPolicy):
    """Preempts when nobody needs it; `whims` is the seed of all choices."""

    def __init__(self, settings: EngineSettings, whims: int) -> None:
        super().__init__(settings_of(settings))
        self._random = Random(whims)

    def fill(self, step: Step) -> None:
        """Now and then take memory from somebody, before or after others were granted tokens."""
        self._disturb(step)
        super().fill(step)
        self._disturb(step)

    def _disturb(self, step: Step) -> None:
        candidates = step.running()
        if candidates and self._random.random() < WHIM_SHARE:
            whim = self._whim(self._random.choice(candidates))
            step.preempt(whim.request, whim.relief, whim.num_blocks)

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
