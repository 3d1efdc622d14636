"""Headrace's policy: earliest deadline first inside a fairness window, per step, charged by what
really ran.

Owns: the order of the questions. Each answer is in a file of its own: `flows` (who waits),
`fair_queue` (who was served for its weight), `prices` (what it cost), `contenders` (whose turn),
`pace` (how many tokens the promised gaps allow). Never knows: blocks, rows, plans, clocks.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np

from core.policy.base import Policy, Prediction, Preemption, ReplicaLoad, Step
from core.policy.calibration import CostModels
from core.policy.contenders import Contenders
from core.policy.cost_model import CostBasis, CostModel
from core.policy.flows import Flows, place
from core.policy.limits import Limits
from core.policy.pace import Pace
from core.policy.place_queue import Place
from core.policy.prices import TOKEN_PRICES, modelled_prices
from core.policy.settings import PolicySettings
from core.policy.shares import Shares
from core.request import Request


class HeadracePolicy(Policy):
    """One set of flows for all replicas."""

    def __init__(self, settings: PolicySettings, model: CostModel | None = None) -> None:
        """Start with nobody waiting; until replicas bring a cost model, or `model` is one for all,
        steps are bounded by tokens alone.
        """
        self._settings = settings
        self._models = CostModels(model)
        self._flows = Flows()
        self._pace = Pace(settings, self._models, self._flows)
        by_tokens = model is None or settings.tuning.charge == "tokens"
        prices = TOKEN_PRICES if by_tokens or model is None else modelled_prices(model)
        self._shares = Shares(settings, self._flows, prices)

    def configure(self, limits: Limits) -> None:
        """Take over the promises and caps from now on."""
        self._shares.configure(limits)
        self._pace.configure(limits)

    def place(self, request: Request) -> Place:
        """Return where `request` stands among those of its class."""
        return (-request.traffic_class, *place(request))

    def add(self, request: Request) -> None:
        """Let `request` wait at its place in its flow."""
        if self._flows.know(request):
            self._shares.resize()
        self._flows.add(request)
        self._shares.look(request.flow)

    def remove(self, request: Request) -> None:
        """Forget a waiting `request`."""
        self._flows.remove(request)

    def started(self, request: Request) -> None:
        """Count it as running."""
        self._flows.num_running[request.flow] += 1
        self._shares.look(request.flow)

    def stopped(self, request: Request) -> None:
        """Count it as running no more."""
        self._flows.num_running[request.flow] -= 1

    def fill(self, step: Step) -> None:
        """Charge the decodes, then grant to whose turn it is until nothing fits any more."""
        budget = self._pace.open(step, step.decodes())
        self._shares.charge_decodes(step.decodes())
        contenders = Contenders(step, self._flows, self._shares)
        while step.tokens_left and (request := contenders.next()) is not None:
            wanted = min(contenders.most_tokens(request), step.remaining(request))
            wanted = min(wanted, budget.most(request))
            if wanted <= 0:
                return
            grant = step.grant(request, wanted)
            context = request.num_tokens - step.remaining(request) - grant.num_tokens
            budget.spend(request, context, grant.num_tokens)
            self._shares.charge_prefill(request, context, grant.num_tokens)
            contenders.settle(request, grant)

    def replica_up(self, replica: int, basis: CostBasis | None) -> None:
        """Predict its steps by the basis from now on."""
        self._pace.lose(replica)
        if basis is not None:
            self._models.calibrate(replica, basis)

    def measured(self, replica: int, step: int, duration_ns: int) -> None:
        """Let the cost model learn."""
        self._pace.measured(replica, step, duration_ns)

    def prediction(self, replica: int) -> Prediction | None:
        """Return how well its steps are predicted."""
        return self._pace.prediction(replica)

    def victim(
        self, candidates: Sequence[Request], beneficiary: Request, load: ReplicaLoad
    ) -> Preemption | None:
        """Return the last of `candidates`: preemptible classes first, then the latest due."""
        last = max(candidates, key=self._evict_order, default=None)
        return None if last is None else Preemption(last)

    def headroom_blocks(self, request: Request, load: ReplicaLoad) -> int:
        """Return the configured share of the pool; a replica that runs nothing needs none."""
        if load.num_running == 0:
            return 0
        return ceil(self._settings.kv_headroom_fraction * load.num_blocks)

    def check_integrity(self) -> None:
        """Assert that queues and shares are whole."""
        self._flows.check_integrity()
        assert np.all(self._flows.num_running >= 0)

    def _evict_order(self, request: Request) -> tuple[int, ...]:
        preemptible = self._shares.limits.of(request.traffic_class).preemptible
        return (preemptible, *place(request))
