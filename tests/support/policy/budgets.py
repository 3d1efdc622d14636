"""The token-rate budget of one tenant, to be used by hand."""

from core.clock import NS_PER_S
from core.policy.hard_limits.budgets import Budgets
from core.policy.limits import Limits
from core.request import Request
from core.tenancy.tenants import TenantConfig
from core.token_rate import TokenRate

RATE = TokenRate(tokens_per_minute=60, burst_tokens=100)  # a token a second
TENANT = TenantConfig(name="a", tokens_per_minute=60, burst_tokens=100)


def budgets_of(tenant: TenantConfig = TENANT) -> Budgets:
    """Return the budgets of one tenant."""
    return Budgets(Limits(tenants={tenant.name: tenant}))


def let_in(budgets: Budgets, request: Request, now_s: float) -> bool:
    """Ask, and be debited if the answer is yes."""
    now_ns = round(now_s * NS_PER_S)
    if budgets.refusal(request, now_ns) is not None:
        return False
    budgets.admit(request, now_ns)
    return True
