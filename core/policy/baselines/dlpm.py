"""Deficit longest prefix match (Cao et al. 2025, "Locality-aware fair scheduling in LLM serving").

Whoever has most of its prompt in the cache is next, among the tenants that have a deficit left.
What is computed for a tenant is taken from its deficit; when no waiting tenant has any left, each
gets a quantum. Only the first requests of each tenant are compared, so that a step costs the same
however many wait.
"""

from core.policy.base import Step
from core.policy.baselines.tenant_queues import TenantQueues
from core.policy.baselines.urgency import Budget, UrgencyPolicy
from core.policy.baselines.vtc import TenantBudget
from core.policy.place_queue import Place
from core.policy.settings import PolicySettings
from core.request import Request

DEFAULT_QUANTUM_TOKENS = 16_384
DEFAULT_LOOKAHEAD = 16
UNDER_WAY, WAITING = 0, 1


class DlpmPolicy(UrgencyPolicy):
    """Prompts under way come first, in the order of arrival."""

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
        self._waiting = TenantQueues(self.place)
        self._charges: dict[int, int] = {}  # of a tenant, less its quanta: the negative deficit

    def add(self, request: Request) -> None:
        """Let `request` wait."""
        self._waiting.add(request)

    def remove(self, request: Request) -> None:
        """Forget a waiting `request`."""
        self._waiting.remove(request)

    def urgency(self, request: Request, remaining: int) -> Place:
        """Return the place of a prompt under way."""
        return (UNDER_WAY, request.arrival_ns, request.order)

    def place(self, request: Request) -> Place:
        """Return the place among those with equal hits, behind all that are under way."""
        return (WAITING, request.arrival_ns, request.order)

    def budget(self, step: Step) -> Budget:
        """Return all that the step has left."""
        return TenantBudget(step, self._charges)

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

    def check_integrity(self) -> None:
        """Assert that the queues are whole."""
        self._waiting.check_integrity()
