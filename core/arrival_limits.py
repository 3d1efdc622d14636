"""The limits of a tenant and a class at arrival: whether a number breaks one, and what to say.

Owns: the reasons, knobs and numbers of these refusals, the same wherever a limit is checked: in
http from the directory and the board, before any work is done, and in the scheduler, which is the
judge. Never knows: where a number comes from. None is: not broken.
"""

from core.errors import RETRY_AFTER_MS, Rejection, RejectionReason
from core.tenancy.classes import ClassConfig, TrafficClass
from core.tenancy.tenancy import Tenancy
from core.tenancy.tenants import TenantConfig
from core.token_rate import TokenRate


def forbidden(tenant: TenantConfig, traffic_class: TrafficClass) -> Rejection | None:
    """Return the refusal of a class that the tenant may not use."""
    if traffic_class.label in tenant.classes:
        return None
    return Rejection(RejectionReason.TENANT_FORBIDDEN, 0, f"tenants[{tenant.name}].classes")


def prompt_cap(
    config: ClassConfig, traffic_class: TrafficClass, prompt_len: int
) -> Rejection | None:
    """Return the refusal of a prompt that is longer than its class takes."""
    if not 0 < config.max_prompt_tokens < prompt_len:
        return None
    knob = f"classes.{traffic_class.label}.max_prompt_tokens"
    return Rejection(
        RejectionReason.CLASS_PROMPT_CAP, 0, knob, prompt_len, config.max_prompt_tokens
    )


def kv_share(fraction: float, knob: str, num_blocks: int, pool_blocks: int) -> Rejection | None:
    """Return the refusal of what exceeds a share of the largest pool; 0 = that is not known."""
    share = blocks_of(fraction, pool_blocks)
    if not 0 < share < num_blocks:
        return None
    return Rejection(RejectionReason.KV_NEVER_FITS, 0, knob, num_blocks, share)


def blocks_of(fraction: float, pool_blocks: int) -> int:
    """Return a share of a pool in blocks, rounded up, so that none is without any."""
    return -int(-fraction * pool_blocks // 1)


def paused(name: str, is_paused: bool) -> Rejection | None:
    """Return the refusal while an operator has paused `name`, a tenant or a class."""
    if not is_paused:
        return None
    return Rejection(RejectionReason.TENANT_PAUSED, RETRY_AFTER_MS, f"{name}.paused")


def is_paused(tenancy: Tenancy, tenant: str, traffic_class: TrafficClass) -> Rejection | None:
    """Return the refusal while tenant or class are paused."""
    label = traffic_class.label
    return paused(f"tenants[{tenant}]", tenant in tenancy.paused_tenants) or paused(
        f"classes.{label}", label in tenancy.paused_classes
    )


def queue_full_requests(
    tenant: TenantConfig, num_waiting: int, num_new: int, retry_after_ms: int
) -> Rejection | None:
    """Return the refusal of requests that the tenant's queue has no room for."""
    limit = tenant.max_queued_requests
    if not limit or num_waiting + num_new <= limit:
        return None
    return Rejection(
        RejectionReason.TENANT_QUEUE_FULL_REQUESTS,
        retry_after_ms if num_new <= limit else 0,
        f"tenants[{tenant.name}].max_queued_requests",
        num_waiting + num_new,
        limit,
    )


def queue_full_tokens(
    tenant: TenantConfig, waiting_tokens: int, num_tokens: int, retry_after_ms: int
) -> Rejection | None:
    """Return the refusal of tokens that the tenant's queue has no room for."""
    limit = tenant.max_queued_tokens
    if not limit or waiting_tokens + num_tokens <= limit:
        return None
    return Rejection(
        RejectionReason.TENANT_QUEUE_FULL_TOKENS,
        retry_after_ms if num_tokens <= limit else 0,
        f"tenants[{tenant.name}].max_queued_tokens",
        waiting_tokens + num_tokens,
        limit,
    )


def rate_never_fits(tenant: TenantConfig, num_tokens: int) -> Rejection | None:
    """Return the refusal of a cost that is more than the tenant may ever use at once."""
    rate = TokenRate.of(tenant)
    if rate is None or is_postpaid(tenant) or rate.ever_fits(num_tokens):
        return None
    knob = f"tenants[{tenant.name}].burst_tokens"
    return Rejection(RejectionReason.RATE_NEVER_FITS, 0, knob, num_tokens, rate.burst_tokens)


def rate_used_up(
    tenant: TenantConfig, num_tokens: int, tokens_left: int, retry_after_ms: int
) -> Rejection:
    """Return the refusal of a cost that the tenant's budget has not left now."""
    knob = f"tenants[{tenant.name}].tokens_per_minute"
    return Rejection(RejectionReason.TENANT_RATE, retry_after_ms, knob, num_tokens, tokens_left)


def is_postpaid(tenant: TenantConfig) -> bool:
    """Tell whether the tenant is debited what it used, not what it asks for."""
    return tenant.budget_mode == "postpaid"
