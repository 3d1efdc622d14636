"""May a request enter the queue at all? Arithmetic only; nothing is allocated.

Owns: the hard limits at arrival and the wording of each refusal. Never knows: queues or pools
themselves, only their numbers. The first limit that is broken is the answer.

Where several tenants share the queue, none may have more of it than some times what is still free:
whoever floods it alone ends at 8/9 of it, and the rest is there for those who come later. Dynamic
thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6 (2), 1998.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from core.errors import RETRY_AFTER_MS, Rejection, RejectionReason
from core.request import Request
from core.scheduler.settings import EngineSettings

TIMES_FREE = 8  # what a tenant may have waiting, in what all of them leave free


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionState:
    """The numbers a request is measured against, at its arrival."""

    draining: bool
    has_replica: bool  # one runs, or may come back
    max_pool_blocks: int  # of the largest pool; 0 = not known yet
    needed_blocks: int  # for prompt + max_tokens
    num_waiting: int
    waiting_tokens: int
    is_shared: bool  # by several tenants
    tenant_waiting: int
    tenant_waiting_tokens: int
    retry_after_ms: int  # until the queue has room, from its drain rate


def refusal(request: Request, settings: EngineSettings, state: AdmissionState) -> Rejection | None:
    """Return why `request` may not wait here, or None; a resumed one was admitted before."""
    resumed = request.num_output_tokens > 0
    reasons = _impossible(request, settings, state)
    if not resumed:
        reasons = _either(reasons, _overload(request, settings, state))
    if state.is_shared and not request.was_queued:
        reasons = _either(reasons, _crowding_out(settings, state))
    return next(reasons, None)


def kv_never_fits(needed_blocks: int, max_pool_blocks: int) -> Rejection:
    """Return the refusal of a request that no pool can hold."""
    return Rejection(
        RejectionReason.KV_NEVER_FITS, 0, "engine.num_kv_blocks", needed_blocks, max_pool_blocks
    )


def no_replica() -> Rejection:
    """Return the refusal when no executor is left."""
    return Rejection(RejectionReason.NO_REPLICA, RETRY_AFTER_MS, "engine.replicas", 0, 1)


def _either(first: Iterator[Rejection], second: Iterator[Rejection]) -> Iterator[Rejection]:
    yield from first
    yield from second


def _impossible(
    request: Request, settings: EngineSettings, state: AdmissionState
) -> Iterator[Rejection]:
    num_tokens = request.max_length
    if num_tokens > settings.max_model_len:
        yield Rejection(
            RejectionReason.CONTEXT_LENGTH_EXCEEDED,
            0,
            "engine.max_model_len",
            num_tokens,
            settings.max_model_len,
        )
    if not state.has_replica:
        yield no_replica()
    if 0 < state.max_pool_blocks < state.needed_blocks:
        yield kv_never_fits(state.needed_blocks, state.max_pool_blocks)


def _overload(
    request: Request, settings: EngineSettings, state: AdmissionState
) -> Iterator[Rejection]:
    if state.draining:
        yield Rejection(RejectionReason.DRAINING, RETRY_AFTER_MS)
    if state.num_waiting >= settings.max_queued_requests:
        yield Rejection(
            RejectionReason.QUEUE_FULL_REQUESTS,
            state.retry_after_ms,
            "scheduler.max_queued_requests",
            state.num_waiting + 1,
            settings.max_queued_requests,
        )
    num_tokens = request.max_length
    waiting_tokens = state.waiting_tokens + num_tokens
    if waiting_tokens > settings.max_queued_tokens:
        yield Rejection(
            RejectionReason.QUEUE_FULL_TOKENS,
            state.retry_after_ms if num_tokens <= settings.max_queued_tokens else 0,
            "scheduler.max_queued_tokens",
            waiting_tokens,
            settings.max_queued_tokens,
        )


def _crowding_out(settings: EngineSettings, state: AdmissionState) -> Iterator[Rejection]:
    """Yield why one tenant has enough of the queue that it shares."""
    for reason, knob, own, waiting, limit in (
        (
            RejectionReason.QUEUE_FULL_REQUESTS,
            "scheduler.max_queued_requests",
            state.tenant_waiting,
            state.num_waiting,
            settings.max_queued_requests,
        ),
        (
            RejectionReason.QUEUE_FULL_TOKENS,
            "scheduler.max_queued_tokens",
            state.tenant_waiting_tokens,
            state.waiting_tokens,
            settings.max_queued_tokens,
        ),
    ):
        if own >= TIMES_FREE * (limit - waiting):
            yield Rejection(reason, state.retry_after_ms, knob, own, TIMES_FREE * (limit - waiting))
