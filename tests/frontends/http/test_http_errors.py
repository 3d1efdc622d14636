"""The one table from reasons to answers, and the wording that clients look for."""

import orjson
import pytest

from core.errors import Rejection, RejectionReason
from core.messages.http import Chunk, Failed
from frontends.http.errors import (
    ANSWERS,
    context_length_exceeded,
    from_end,
    from_failure,
    from_rejection,
)

R = RejectionReason

EXPECTED = {
    400: {R.CONTEXT_LENGTH_EXCEEDED, R.KV_NEVER_FITS, R.RATE_NEVER_FITS, R.CLASS_PROMPT_CAP},
    403: {R.TENANT_FORBIDDEN},
    429: {
        R.QUEUE_FULL_REQUESTS,
        R.QUEUE_FULL_TOKENS,
        R.TENANT_QUEUE_FULL_REQUESTS,
        R.TENANT_QUEUE_FULL_TOKENS,
        R.TENANT_RATE,
        R.TENANT_PAUSED,
        R.SHED_INFEASIBLE,
        R.SHED_PREDICTED,
        R.TOKENIZER_BUSY,
    },
    500: {R.EXECUTOR_FAULT},
    503: {R.DRAINING, R.NO_REPLICA, R.ENGINE_RESTARTED},
    504: {R.DEADLINE_EXCEEDED},
}
TYPES = {
    400: "invalid_request_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
}
CASES = [(status, reason) for status, reasons in EXPECTED.items() for reason in sorted(reasons)]


def test_every_reason_has_an_answer() -> None:
    """No reason of the engine is left without a status, and the table of this test is complete."""
    assert set(ANSWERS) == set(R) - {R.NONE}
    assert {reason for _, reason in CASES} == set(ANSWERS)


@pytest.mark.parametrize(("status", "reason"), CASES, ids=lambda value: str(value))
def test_a_reason_has_its_status_type_and_code(status: int, reason: RejectionReason) -> None:
    """Status and type follow from the reason, whose name is the code; 429 and 503 say when."""
    error = from_rejection(Rejection(reason, retry_after_ms=1500, measured=3, threshold=2))
    body = orjson.loads(error.body())["error"]
    assert (error.status, body["type"], body["code"]) == (status, TYPES[status], reason.code)
    assert set(body) == {"message", "type", "param", "code"}
    headers = dict(error.headers())
    assert (headers.get(b"retry-after") == b"2") == (status in (429, 503))
    assert (headers.get(b"retry-after-ms") == b"1500") == (status in (429, 503))


def test_a_refusal_without_a_time_asks_for_a_second() -> None:
    """429 and 503 always carry Retry-After, also when the engine named no time."""
    headers = dict(from_rejection(Rejection(R.QUEUE_FULL_REQUESTS)).headers())
    assert headers[b"retry-after"] == b"1"


@pytest.mark.parametrize(("is_clients", "status"), [(True, 408), (False, 504)])
def test_a_passed_deadline_tells_whose_it_was(is_clients: bool, status: int) -> None:
    """A deadline that the client set is 408, ours is 504; neither should be retried."""
    error = from_rejection(Rejection(R.DEADLINE_EXCEEDED), client_deadline=is_clients)
    assert error.status == status
    assert dict(error.headers())[b"x-should-retry"] == b"false"


def test_the_message_names_the_setting_that_decided() -> None:
    """A refusal says which setting would change it."""
    knob = "scheduler.max_queued_requests"
    assert knob in from_rejection(Rejection(R.QUEUE_FULL_REQUESTS, knob=knob)).message


def test_the_context_message_has_the_words_that_clients_look_for() -> None:
    """LangChain and LiteLLM find a context overflow by these words."""
    message = context_length_exceeded(8192, 9000, 9016).message
    assert "This model's maximum context length is 8192 tokens" in message
    assert "However, you requested 9016 tokens" in message
    assert "(9000 in the prompt, 16 for the completion)" in message


def test_a_context_rejection_becomes_that_message() -> None:
    """The engine's numbers fill the sentence."""
    rejection = Rejection(R.CONTEXT_LENGTH_EXCEEDED, measured=9016, threshold=8192)
    failed = Failed("op", "", rejection=rejection, num_prompt_tokens=9000)
    error = from_failure(failed)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert error.message == context_length_exceeded(8192, 9000, 9016).message


def test_a_bad_request_found_behind_keeps_its_words() -> None:
    """What the tokenizer finds wrong is told with its own message, code and param."""
    failed = Failed("op", "id 70000 is no token", code="bad_token", param="prompt", status=400)
    error = from_failure(failed)
    assert (error.status, error.message, error.code, error.param) == (
        400,
        "id 70000 is no token",
        "bad_token",
        "prompt",
    )


def end(finish_reason: str, reason: RejectionReason | None = None, num_tokens: int = 0) -> Chunk:
    """Return the last chunk of a choice."""
    rejection = None if reason is None else Rejection(reason)
    return Chunk("op", 0, "", [], [], [], finish_reason, None, 3, 0, num_tokens, rejection)


@pytest.mark.parametrize("finish_reason", ["", "stop", "length"])
def test_a_good_end_is_no_error(finish_reason: str) -> None:
    """Only abort and error are told as errors."""
    assert from_end(end(finish_reason)) is None


@pytest.mark.parametrize(
    ("chunk", "status", "code"),
    [
        (end("abort", R.SHED_PREDICTED), 429, "shed_predicted"),
        (end("abort", R.ENGINE_RESTARTED), 503, "engine_restarted"),
        (end("error", R.EXECUTOR_FAULT), 500, "executor_fault"),
        (end("error"), 500, "executor_fault"),
        (end("abort"), 503, "cancelled"),
    ],
)
def test_a_bad_end_has_a_status(chunk: Chunk, status: int, code: str) -> None:
    """A choice that was aborted or failed is never a 200."""
    error = from_end(chunk)
    assert error is not None
    assert (error.status, error.code) == (status, code)


def test_a_bad_end_says_how_much_had_been_made() -> None:
    """What is lost is not lost silently."""
    error = from_end(end("abort", R.ENGINE_RESTARTED, num_tokens=7))
    assert error is not None
    assert "7 tokens had been generated" in error.message
