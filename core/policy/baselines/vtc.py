"""The virtual token counter (OSDI'24, Sheng et al., "Fairness in serving large language models").

Each tenant has a counter of what it was served: a prompt token counts 1, an output token 2. The
waiting tenant with the smallest counter is next, its requests in the order of arrival. A tenant
that returns is lifted to the smallest counter among those that wait, so idling saves nothing up.
Prompt tokens are charged as they are computed, because prompts are computed in chunks.
"""

from core.policy.base import DecodeBatch, Step
from core.policy.baselines.tenant_queues import TenantQueues
from core.policy.baselines.urgency import Budget, UrgencyPolicy
from core.policy.place_queue import Place
from core.policy.settings import PolicySettings
from core.request import Request

PROMPT_WEIGHT = 1
OUTPUT_WEIGHT = 2
UNDER_WAY, WAITING = 0, 1


class TenantBudget(Budget):
    """All that the step has left; what is computed is charged to its tenant in `charges`."""

    def __init__(self, step: Step, charges: dict[int, int]) -> None:
        """Charge the decodes in `step`."""
        super().__init__(step)
        self._charges = charges
        for tenant, count in _outputs_by_tenant(step.decodes()):
            self._charge(tenant, OUTPUT_WEIGHT * count)

    def spend(self, request: Request, context: int, num_tokens: int) -> None:
        """Charge a chunk of a prompt."""
        self._charge(request.tenant_index, PROMPT_WEIGHT * num_tokens)

    def _charge(self, tenant: int, amount: int) -> None:
        self._charges[tenant] = self._charges.get(tenant, 0) + amount


class VtcPolicy(UrgencyPolicy):
    """Prompts under way come first, in the order of arrival."""

    def __init__(self, settings: PolicySettings) -> None:
        """Start with nobody waiting and all counters at 0."""
        super().__init__(settings)
        self._counters: dict[int, int] = {}
        self._waiting = TenantQueues(self.place)
        self._last_tenant = 0  # the last one that ceased to wait

    def urgency(self, request: Request, remaining: int) -> Place:
        """Return the place of a prompt under way."""
        return (UNDER_WAY, request.arrival_ns, request.order)

    def place(self, request: Request) -> Place:
        """Return the place among the requests of its tenant, behind all that are under way."""
        return (WAITING, request.arrival_ns, request.order)

    def add(self, request: Request) -> None:
        """Let `request` wait; lift the counter of a tenant that returns."""
        tenant = request.tenant_index
        if tenant not in self._waiting:
            rivals = self._waiting.tenants or [self._last_tenant]
            floor = min(self._counters.get(rival, 0) for rival in rivals)
            self._counters[tenant] = max(self._counters.get(tenant, 0), floor)
        self._waiting.add(request)

    def remove(self, request: Request) -> None:
        """Forget a waiting `request`."""
        self._waiting.remove(request)
        if request.tenant_index not in self._waiting:
            self._last_tenant = request.tenant_index

    def budget(self, step: Step) -> Budget:
        """Return all that the step has left."""
        return TenantBudget(step, self._counters)

    def next_waiting(self, step: Step) -> Request | None:
        """Return the oldest request of the tenant with the smallest counter."""
        tenants = self._waiting.tenants
        if not tenants:
            return None
        tenant = min(tenants, key=lambda each: (self._counters[each], each))
        return self._waiting.first(tenant, 1)[0]

    def check_integrity(self) -> None:
        """Assert that the queues are whole."""
        self._waiting.check_integrity()


def _outputs_by_tenant(decodes: DecodeBatch) -> list[tuple[int, int]]:
    tenants = decodes.tenant_index.tolist()
    return [(tenant, tenants.count(tenant)) for tenant in set(tenants)]
