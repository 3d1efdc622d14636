"""Policy headrace with eyes: who was protected, who was refused, and who is spared on purpose."""

from collections.abc import Sequence
from dataclasses import replace

from core.engine_core import policy_settings
from core.policy.headrace import HeadracePolicy
from core.policy.lateness.exemptions import Exemptions
from core.policy.lateness.shedding import Shedding
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.policy.turns.locality import Locality
from core.request import Request
from core.simulation.cases import promising
from core.simulation.history import History
from core.simulation.noise import NoiseSettings
from core.simulation.policies import prepare
from core.simulation.run import Simulation
from core.simulation.workload import Workload
from core.tenancy.classes import ClassesConfig
from tests.support.loads.workloads import simulated_settings

MAX_TOKENS = 4096
BEHIND_ALL_NS = 1 << 60


class SparingExemptions(Exemptions):
    """Refuses nobody whose id is in `spared`."""

    spared: frozenset[int] = frozenset()

    def may_be_refused(self, request: Request) -> bool:
        return request.request_id not in self.spared and super().may_be_refused(request)


class SparingShedding(Shedding):
    """Lets those whose ids are in `spared` wait behind everybody else."""

    spared: frozenset[int] = frozenset()

    def start_by_ns(self, request: Request) -> int:
        is_spared = request.request_id in self.spared
        return BEHIND_ALL_NS if is_spared else super().start_by_ns(request)


class WatchedHeadrace(HeadracePolicy):
    """Remembers the ids of requests that were protected when they came."""

    def __init__(
        self,
        settings: PolicySettings,
        *,
        spared: frozenset[int] = frozenset(),
        is_calibrated: bool = True,
        priorities: Sequence[int] = (),
    ) -> None:
        self._priorities = priorities
        machine = simulated_settings().hardware
        super().__init__(settings, machine if is_calibrated else None)
        self._exemptions = SparingExemptions(settings.limits, self._flows)
        self._exemptions.spared = spared
        self._shedding = SparingShedding(
            settings, self._flows, self._shares, self._models, self._exemptions
        )
        self._shedding.spared = spared
        self._shedding.protection.configure(self._company)
        self._locality = Locality(settings, self._flows, self._shedding.protection)
        self.protected: set[int] = set()
        self.refused: dict[int, Request] = {}

    def add(self, request: Request) -> None:
        if self._priorities:
            request.priority = self._priorities[request.request_id - 1]
        super().add(request)
        if request in self._shedding.protection.protected:
            self.protected.add(request.request_id)

    def ended(self, request: Request, now_ns: int) -> None:
        super().ended(request, now_ns)
        if request.rejection is not None:
            self.refused[request.request_id] = request


def promised_limits(workload: Workload) -> Limits:
    """Return the usual classes with the promises of `workload`."""
    classes = ClassesConfig()
    for each, promise in workload.promises.items():
        classes = replace(classes, **{each.label: promising(classes.of(each), promise)})
    return Limits(classes)


def watch(
    workload: Workload,
    *,
    limits: Limits | None = None,
    sigma: float = 0.0,
    seed: int = 0,
    spared: frozenset[int] = frozenset(),
    is_calibrated: bool = True,
    priorities: Sequence[int] = (),
) -> tuple[History, WatchedHeadrace]:
    """Run `workload` on the round machine to the end, with a prefix cache if prompts share any, and
    each request with one of `priorities`, if there are any.
    """
    limits = limits or promised_limits(workload)
    settings = simulated_settings(
        limits=limits,
        max_model_len=16384,
        max_num_seqs=256,
        max_num_batched_tokens=MAX_TOKENS,
        prefix_cache=bool(workload.hash_ids),
    )
    settings = replace(settings, noise=NoiseSettings(sigma), seed=seed)
    settings, _ = prepare("headrace", settings)
    policy = WatchedHeadrace(
        policy_settings(settings.engine),
        spared=spared,
        is_calibrated=is_calibrated,
        priorities=priorities,
    )
    return Simulation(settings, workload, policy).run(), policy
