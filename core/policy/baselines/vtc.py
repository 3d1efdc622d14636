"""The virtual token counter (OSDI'24, Sheng et al., "Fairness in serving large language models").

Each tenant has a counter of what it was served: a prompt token counts 1, an output token 2. The
waiting tenant with the smallest counter is next, its requests in the order of arrival. A tenant
that returns is lifted to the smallest counter among those that wait, so idling saves nothing up.
Prompt tokens are charged as they are computed, because prompts are computed in chunks.
"""

from core.policy.base import Step
from core.policy.baselines.tenant_turns import TenantTurnsPolicy
from core.policy.settings import PolicySettings
from core.request import Request


class VtcPolicy(TenantTurnsPolicy):
    """The charges are the counters."""

    def __init__(self, settings: PolicySettings) -> None:
        """Start with nobody waiting and all counters at 0."""
        super().__init__(settings)
        self._last_tenant = 0  # the last one that ceased to wait

    def add(self, request: Request) -> None:
        """Let `request` wait; lift the counter of a tenant that returns."""
        tenant = request.tenant_index
        if tenant not in self._waiting:
            rivals = self._waiting.tenants or [self._last_tenant]
            floor = min(self._charges.get(rival, 0) for rival in rivals)
            self._charges[tenant] = max(self._charges.get(tenant, 0), floor)
        super().add(request)

    def remove(self, request: Request) -> None:
        """Forget a waiting `request`."""
        super().remove(request)
        if request.tenant_index not in self._waiting:
            self._last_tenant = request.tenant_index

    def next_waiting(self, step: Step) -> Request | None:
        """Return the oldest request of the tenant with the smallest counter."""
        tenants = self._waiting.tenants
        if not tenants:
            return None
        tenant = min(tenants, key=lambda each: (self._charges[each], each))
        return self._waiting.first(tenant, 1)[0]
