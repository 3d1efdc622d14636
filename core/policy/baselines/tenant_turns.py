"""Policies that count what each tenant was given, and go by that when a prompt may start.

Owns: the waiting requests by tenant, and the charges of their prompts and outputs. Never knows:
which tenant is next; subclasses say that. Prompts under way come first, in the order of arrival.
"""

from core.policy.base import DecodeBatch, Step
from core.policy.baselines.tenant_queues import TenantQueues
from core.policy.baselines.urgency import Budget, UrgencyPolicy
from core.policy.queues.place_queue import Place
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


class TenantTurnsPolicy(UrgencyPolicy):
    """A queue and a count for each tenant."""

    def __init__(self, settings: PolicySettings) -> None:
        """Start with nobody waiting and nothing charged."""
        super().__init__(settings)
        self._charges: dict[int, int] = {}  # by tenant index
        self._waiting = TenantQueues(self.place)

    def urgency(self, request: Request, remaining: int) -> Place:
        """Return the place of a prompt under way."""
        return (UNDER_WAY, request.arrival_ns, request.order)

    def place(self, request: Request) -> Place:
        """Return the place among waiting requests, behind all that are under way."""
        return (WAITING, request.arrival_ns, request.order)

    def add(self, request: Request) -> None:
        """Let `request` wait."""
        self._waiting.add(request)

    def remove(self, request: Request) -> None:
        """Forget a waiting `request`."""
        self._waiting.remove(request)

    def forget_tenant(self, index: int) -> None:
        """Let the next tenant of this index have been given as little as anybody."""
        self._charges[index] = min(self._charges.values(), default=0)

    def budget(self, step: Step) -> Budget:
        """Return all that the step has left."""
        return TenantBudget(step, self._charges)

    def check_integrity(self) -> None:
        """Assert that the queues are whole."""
        self._waiting.check_integrity()


def _outputs_by_tenant(decodes: DecodeBatch) -> list[tuple[int, int]]:
    tenants = decodes.tenant_index.tolist()
    return [(tenant, tenants.count(tenant)) for tenant in set(tenants)]
