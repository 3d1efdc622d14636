"""Deficit longest prefix match (Cao et al. 2025, "Locality-aware fair scheduling in LLM serving").

Whoever has most of its prompt in the cache is next, among the tenants that have a deficit left.
What is computed for a tenant is taken from its deficit; when no waiting tenant has any left, each
gets a quantum. Only the first requests of each tenant are compared, so that a step costs the same
however many wait.
"""

from core.policy.base import Step
from core.policy.baselines.tenant_turns import TenantTurnsPolicy
from core.policy.settings import PolicySettings
from core.request import Request

DEFAULT_QUANTUM_TOKENS = 16_384
DEFAULT_LOOKAHEAD = 16


class DlpmPolicy(TenantTurnsPolicy):
    """The charges of a tenant, less its quanta, are its negative deficit."""

    def __init__(
        self,
        settings: PolicySettings,
        *,
        quantum_tokens: int = DEFAULT_QUANTUM_TOKENS,
        lookahead: int = DEFAULT_LOOKAHEAD,
    ) -> None:
        """Start with nobody waiting and no deficit."""
        super().__init__(settings)
        self._quantum_tokens = quantum_tokens
        self._lookahead = lookahead

    def next_waiting(self, step: Step) -> Request | None:
        """Return the longest prefix match of a tenant with a deficit."""
        tenants = self._waiting.tenants
        if not tenants:
            return None
        while not (served := [each for each in tenants if self._charges.get(each, 0) < 0]):
            for tenant in tenants:
                self._charges[tenant] = self._charges.get(tenant, 0) - self._quantum_tokens
        waiting = [r for tenant in served for r in self._waiting.first(tenant, self._lookahead)]
        return max(waiting, key=lambda r: (step.hit_tokens(r), -r.arrival_ns, -r.order))
