"""The hard limits at arrival: what is refused, and what the refusal says."""

from dataclasses import replace

import pytest

from core.errors import RejectionReason
from core.scheduler.admission import AdmissionState, refusal
from tests.support.scheduler.checked_engine import make_request, make_settings

LIMITS = make_settings(max_model_len=100, max_queued_requests=3, max_queued_tokens=50)
ROOMY = AdmissionState(
    draining=False,
    has_replica=True,
    max_pool_blocks=10,
    needed_blocks=2,
    num_waiting=0,
    waiting_tokens=0,
    is_shared=False,
    tenant_waiting=0,
    tenant_waiting_tokens=0,
    retry_after_ms=700,
)


def test_a_request_within_all_limits_is_admitted() -> None:
    """A request is admitted up to and including every limit."""
    exact = replace(ROOMY, needed_blocks=10, num_waiting=2, waiting_tokens=42)
    assert refusal(make_request(prompt_len=4, max_tokens=4), LIMITS, exact) is None


def test_a_request_beyond_the_context_is_refused_for_good() -> None:
    """Prompt + max_tokens beyond max_model_len is refused without a time to retry."""
    rejection = refusal(make_request(prompt_len=97, max_tokens=4), LIMITS, ROOMY)
    assert rejection is not None
    assert rejection.reason is RejectionReason.CONTEXT_LENGTH_EXCEEDED
    assert (rejection.measured, rejection.threshold, rejection.retry_after_ms) == (101, 100, 0)
    assert rejection.knob == "engine.max_model_len"


def test_a_request_that_no_pool_can_hold_is_refused_for_good() -> None:
    """More blocks than the largest pool has is refused by arithmetic."""
    rejection = refusal(make_request(), LIMITS, replace(ROOMY, needed_blocks=11))
    assert rejection is not None
    assert rejection.reason is RejectionReason.KV_NEVER_FITS
    assert (rejection.measured, rejection.threshold, rejection.retry_after_ms) == (11, 10, 0)


def test_an_unknown_pool_refuses_nobody() -> None:
    """Before all executors have said how large their pools are, nothing is known never to fit."""
    state = replace(ROOMY, needed_blocks=11, max_pool_blocks=0)
    assert refusal(make_request(), LIMITS, state) is None


def test_a_full_queue_says_which_bound_and_when_to_retry() -> None:
    """Both bounds of the queue are refused with their knob, the two numbers and a time."""
    by_requests = refusal(make_request(), LIMITS, replace(ROOMY, num_waiting=3))
    by_tokens = refusal(make_request(), LIMITS, replace(ROOMY, waiting_tokens=43))
    assert by_requests is not None
    assert by_tokens is not None
    assert by_requests.reason is RejectionReason.QUEUE_FULL_REQUESTS
    assert by_requests.knob == "scheduler.max_queued_requests"
    assert (by_requests.measured, by_requests.threshold) == (4, 3)
    assert by_tokens.reason is RejectionReason.QUEUE_FULL_TOKENS
    assert (by_tokens.measured, by_tokens.threshold) == (51, 50)
    assert by_requests.retry_after_ms == by_tokens.retry_after_ms == 700


def test_a_request_larger_than_the_whole_queue_is_not_told_to_retry() -> None:
    """Waiting does not help a request that an empty queue cannot take."""
    rejection = refusal(make_request(prompt_len=48, max_tokens=4), LIMITS, ROOMY)
    assert rejection is not None
    assert rejection.retry_after_ms == 0


FLOODED = replace(ROOMY, is_shared=True, tenant_waiting=16, num_waiting=16)
WIDE = make_settings(max_model_len=100, max_queued_requests=18, max_queued_tokens=900)


@pytest.mark.parametrize(
    ("state", "knob", "numbers"),
    [
        (FLOODED, "scheduler.max_queued_requests", (16, 16)),
        (
            replace(FLOODED, num_waiting=3, tenant_waiting_tokens=801, waiting_tokens=800),
            "scheduler.max_queued_tokens",
            (801, 800),
        ),
    ],
)
def test_nobody_crowds_the_others_out_of_a_shared_queue(
    state: AdmissionState, knob: str, numbers: tuple[int, int]
) -> None:
    """Whoever has eight times what is free gets no more; the rest is there for another, and all of
    it for a tenant who is alone. What an earlier scheduler let in stays.
    """
    rejection = refusal(make_request(), WIDE, state)
    assert rejection is not None
    assert (rejection.knob, (rejection.measured, rejection.threshold)) == (knob, numbers)
    assert rejection.retry_after_ms == 700
    another = replace(state, tenant_waiting=0, tenant_waiting_tokens=0)
    assert refusal(make_request(), WIDE, another) is None
    assert refusal(make_request(), WIDE, replace(state, is_shared=False)) is None
    let_in = make_request()
    let_in.was_queued = True
    assert refusal(let_in, WIDE, state) is None


def test_draining_and_missing_replicas_refuse_everybody() -> None:
    """A draining engine and one without executors each give their reason."""
    draining = refusal(make_request(), LIMITS, replace(ROOMY, draining=True))
    headless = refusal(make_request(), LIMITS, replace(ROOMY, has_replica=False))
    assert draining is not None
    assert headless is not None
    assert draining.reason is RejectionReason.DRAINING
    assert headless.reason is RejectionReason.NO_REPLICA


def test_a_resumed_request_is_not_refused_for_load() -> None:
    """A request that had its admission before a restart only meets what is impossible."""
    request = make_request()
    request.num_output_tokens = 1
    busy = replace(ROOMY, draining=True, num_waiting=99, waiting_tokens=9999)
    assert refusal(request, LIMITS, busy) is None
    assert refusal(request, LIMITS, replace(busy, needed_blocks=11)) is not None
