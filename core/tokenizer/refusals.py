"""What a client is told when an operation is not served or not served on.

Pure functions to `Failed` and `Rejection`. The sentences for rejection reasons are http's; here are
those for bad requests, and the configuration path behind each reason, which the fixed-layout
records of the scheduler have no room for.
"""

from core.clock import NS_PER_MS
from core.errors import RETRY_AFTER_MS, Rejection, RejectionReason
from core.messages.http import Failed
from core.messages.scheduler import Submit

KNOBS: dict[RejectionReason, str] = {
    RejectionReason.CONTEXT_LENGTH_EXCEEDED: "engine.max_model_len",
    RejectionReason.KV_NEVER_FITS: "engine.num_kv_blocks, or a KV share of tenant or class",
    RejectionReason.RATE_NEVER_FITS: "tenants[{tenant}].burst_tokens",
    RejectionReason.TENANT_FORBIDDEN: "tenants[{tenant}].classes",
    RejectionReason.QUEUE_FULL_REQUESTS: "scheduler.max_queued_requests",
    RejectionReason.QUEUE_FULL_TOKENS: "scheduler.max_queued_tokens",
    RejectionReason.TENANT_QUEUE_FULL_REQUESTS: "tenants[{tenant}].max_queued_requests",
    RejectionReason.TENANT_QUEUE_FULL_TOKENS: "tenants[{tenant}].max_queued_tokens",
    RejectionReason.TENANT_RATE: "tenants[{tenant}].tokens_per_minute",
    RejectionReason.CLASS_PROMPT_CAP: "classes.{traffic_class}.max_prompt_tokens",
}


def bad_request(operation_id: str, message: str, param: str) -> Failed:
    """Return the end of an operation whose parameter `param` cannot be accepted."""
    return Failed(operation_id, message, param=param)


def tokenizer_busy(operation_id: str, knob: str, measured: float, threshold: float) -> Failed:
    """Return the end of an operation for which this tokenizer has no room now."""
    reason = RejectionReason.TOKENIZER_BUSY
    return refused(operation_id, Rejection(reason, RETRY_AFTER_MS, knob, measured, threshold))


def context_length_exceeded(
    operation_id: str, num_prompt_tokens: int, num_tokens: int, max_model_len: int
) -> Failed:
    """Return the end of an operation that needs `num_tokens` in all, more than the context."""
    reason = RejectionReason.CONTEXT_LENGTH_EXCEEDED
    return Failed(
        operation_id,
        f"This model's maximum context length is {max_model_len} tokens."
        f" However, you requested {num_tokens} tokens.",
        code=reason.code,
        rejection=Rejection(reason, 0, KNOBS[reason], num_tokens, max_model_len),
        num_prompt_tokens=num_prompt_tokens,
    )


def refused(operation_id: str, rejection: Rejection, client_deadline: bool = False) -> Failed:
    """Return the end of a refused operation; status 408 marks a deadline of the client's own."""
    code = rejection.reason.code
    is_own = client_deadline and rejection.reason is RejectionReason.DEADLINE_EXCEEDED
    return Failed(
        operation_id, f"refused: {code}", code, status=408 if is_own else 503, rejection=rejection
    )


def engine_restarted() -> Rejection:
    """Return the reason to give when the engine lost a request through no fault of its own."""
    return Rejection(RejectionReason.ENGINE_RESTARTED, RETRY_AFTER_MS)


def rejection_of(
    submit: Submit, reason: int, retry_after_ms: int, measured: float, threshold: float
) -> Rejection | None:
    """Return the rejection that an output record carries, or None."""
    if reason == RejectionReason.NONE:
        return None
    known = RejectionReason(reason)
    knob = KNOBS.get(known, "").format(
        tenant=submit.tenant, traffic_class=submit.traffic_class.label
    )
    return Rejection(known, retry_after_ms, knob, measured, threshold)


def is_own_deadline(submit: Submit, rejection: Rejection | None) -> bool:
    """Tell whether the deadline that passed was one the client had set, not the engine's."""
    if rejection is None or rejection.reason is not RejectionReason.DEADLINE_EXCEEDED:
        return False
    own = (submit.queue_deadline_ns, submit.end_deadline_ns)
    return rejection.threshold in [(t - submit.arrival_ns) / NS_PER_MS for t in own if t]
