"""Policy headrace with eyes: who was protected, who was refused, and who is spared on purpose."""

from dataclasses import replace

import numpy as np

from core.policy.headrace import HeadracePolicy
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.policy.shedding import Shedding
from core.request import Request
from core.simulation.history import History
from core.simulation.noise import NoiseSettings
from core.simulation.policies import prepare
from core.simulation.run import Simulation
from core.simulation.workload import Promise, Workload
from core.tenancy import TrafficClass
from tests.support.workloads import make_workload, simulated_settings

FAST, SLOW = TrafficClass.INTERACTIVE, TrafficClass.STANDARD
PROMISES = {FAST: Promise(2.0, 0.06), SLOW: Promise(20.0, 0.4)}
MAX_TOKENS = 4096
BEHIND_ALL_NS = 1 << 60
PROMPTS_PER_S = 11.0  # that the round machine computes, of those below


class SparingShedding(Shedding):
    """Refuses nobody whose id is in `spared`, and lets them wait behind everybody else."""

    spared: frozenset[int] = frozenset()

    def _is_sheddable(self, request: Request) -> bool:
        return request.request_id not in self.spared and super()._is_sheddable(request)

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
    ) -> None:
        machine = simulated_settings().hardware
        super().__init__(settings, machine if is_calibrated else None)
        self._shedding = SparingShedding(settings, self._flows, self._shares, self._models)
        self._shedding.spared = spared
        self.protected: set[int] = set()
        self.refused: dict[int, Request] = {}

    def add(self, request: Request) -> None:
        super().add(request)
        if request in self._shedding.protection.protected:
            self.protected.add(request.request_id)

    def ended(self, request: Request, now_ns: int) -> None:
        super().ended(request, now_ns)
        if request.rejection is not None:
            self.refused[request.request_id] = request


def watch(
    workload: Workload,
    *,
    limits: Limits | None = None,
    sigma: float = 0.0,
    seed: int = 0,
    spared: frozenset[int] = frozenset(),
    is_calibrated: bool = True,
) -> tuple[History, WatchedHeadrace]:
    """Run `workload` on the round machine to the end."""
    limits = limits or Limits()
    settings = simulated_settings(limits=limits, max_model_len=16384, max_num_seqs=256)
    settings = replace(settings, noise=NoiseSettings(sigma), seed=seed)
    settings, _ = prepare("headrace", settings)
    policy = WatchedHeadrace(
        PolicySettings(
            max_num_partial_prefills=64,
            kv_headroom_fraction=0.0,
            max_num_seqs=256,
            max_num_batched_tokens=MAX_TOKENS,
            limits=limits,
        ),
        spared=spared,
        is_calibrated=is_calibrated,
    )
    return Simulation(settings, workload, policy).run(), policy


def stream(seed: int, load: float, count: int = 400, num_tenants: int = 1) -> Workload:
    """Return Poisson arrivals of two classes at `load` times of what the machine can do; prompts
    of 50 to 3,200 tokens, evenly in the logarithm.
    """
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1000 / PROMPTS_PER_S / load, count))
    prompts = np.exp(random.uniform(np.log(50), np.log(3200), count)).astype(int)
    outputs = random.integers(1, 12, count)
    rows = list(zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True))
    return make_workload(
        rows,
        tenants=random.integers(0, num_tenants, count).tolist(),
        classes=[(FAST, SLOW)[each] for each in random.integers(0, 2, count).tolist()],
        promises=PROMISES,
    )
