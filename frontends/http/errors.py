"""Every error a client can be told, and the one table from rejection reasons to HTTP answers.

    ApiError        an answer that is not 200: status, type, code, param, and when to come back

Owns: statuses, types, codes and wording. Never knows: sockets, ASGI, or who found the fault.
The body is OpenAI's: `{"error": {"message", "type", "param", "code"}}`, code a string or null.
"""

import math
from dataclasses import dataclass

import orjson

from core.errors import RETRY_AFTER_MS, Rejection, RejectionReason
from core.messages.http import Chunk, Failed
from core.tenancy.classes import TrafficClass

INVALID_REQUEST = "invalid_request_error"
RATE_LIMIT = "rate_limit_error"
PERMISSION = "permission_error"
OVERLOADED = "overloaded_error"
TIMEOUT = "timeout_error"
SERVER = "server_error"

MS_PER_S = 1000
SHOWN_CHARACTERS = 40  # of what a client sent

Header = tuple[bytes, bytes]


class ApiError(Exception):
    """An answer that is not 200; raised anywhere below a route and written by the application."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str = INVALID_REQUEST,
        code: str | None = None,
        param: str | None = None,
        retry_after_ms: int = 0,
        should_retry: bool | None = None,
        reason: RejectionReason = RejectionReason.NONE,
        headers: tuple[Header, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type_
        self.code = code
        self.param = param
        self.retry_after_ms = retry_after_ms
        self.should_retry = should_retry
        self.reason = reason
        self._headers = headers

    def body(self) -> bytes:
        """Return the JSON body, which is also the payload of an error event in a stream."""
        return orjson.dumps(
            {
                "error": {
                    "message": self.message,
                    "type": self.type,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def headers(self) -> list[Header]:
        """Return the headers that go with the status: when to retry, or not at all."""
        headers = list(self._headers)
        if self.retry_after_ms > 0:
            seconds = math.ceil(self.retry_after_ms / MS_PER_S)
            headers.append((b"retry-after", str(seconds).encode()))
            headers.append((b"retry-after-ms", str(self.retry_after_ms).encode()))
        if self.should_retry is not None:
            headers.append((b"x-should-retry", b"true" if self.should_retry else b"false"))
        return headers


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the 400 for a parameter that cannot be accepted."""
    return ApiError(400, message, param=param, code=code)


def unsupported_parameter(param: str, value: str = "") -> ApiError:
    """Return the 400 for a field that OpenAI defines and this server does not build."""
    shown = f" with the value {value}" if value else ""
    return bad_request(
        f"The parameter '{param}'{shown} is not supported by this server.",
        param=param,
        code="unsupported_parameter",
    )


def context_length_exceeded(
    max_model_len: int, num_prompt_tokens: int, num_tokens: int
) -> ApiError:
    """Return the 400 for more than the context holds; clients look for the first words."""
    num_completion_tokens = max(0, num_tokens - num_prompt_tokens)
    split = (
        f" ({num_prompt_tokens} in the prompt, {num_completion_tokens} for the completion)"
        if num_prompt_tokens
        else ""
    )
    return ApiError(
        400,
        f"This model's maximum context length is {max_model_len} tokens. However, you requested"
        f" {num_tokens} tokens{split}. Shorten the prompt or ask for a shorter completion.",
        code=RejectionReason.CONTEXT_LENGTH_EXCEEDED.code,
        reason=RejectionReason.CONTEXT_LENGTH_EXCEEDED,
    )


def unsupported_coding(coding: bytes) -> ApiError:
    """Return the 415 for a body that is compressed (RFC 9110, 15.5.16)."""
    shown = coding.decode("latin-1")[:SHOWN_CHARACTERS]
    return ApiError(
        415,
        f"The body has the content coding '{shown}'; it must be sent without one.",
        code="unsupported_content_encoding",
        headers=((b"accept-encoding", b"identity"),),
    )


def model_not_found(name: str, served: str) -> ApiError:
    """Return the 404 for a model that is not served here."""
    return ApiError(
        404,
        f"Model not found: the model '{name}' does not exist here; this server has '{served}'.",
        param="model",
        code="model_not_found",
    )


def invalid_api_key(message: str) -> ApiError:
    """Return the 401 for a missing or unknown key."""
    return ApiError(
        401, message, code="invalid_api_key", headers=((b"www-authenticate", b"Bearer"),)
    )


def permission_denied(message: str, code: str, param: str | None = None) -> ApiError:
    """Return the 403 for what this caller may not do."""
    return ApiError(403, message, type_=PERMISSION, code=code, param=param)


def class_forbidden(tenant: str, traffic_class: TrafficClass, param: str) -> ApiError:
    """Return the 403 for a class that the tenant does not have."""
    return ApiError(
        403,
        f"The tenant may not use the class '{traffic_class.label}'"
        f" (setting: tenants[{tenant}].classes).",
        type_=PERMISSION,
        code=RejectionReason.TENANT_FORBIDDEN.code,
        param=param,
        reason=RejectionReason.TENANT_FORBIDDEN,
    )


def overloaded(message: str, code: str, retry_after_ms: int = RETRY_AFTER_MS) -> ApiError:
    """Return the 503 for a server that cannot take the request now."""
    return ApiError(503, message, type_=OVERLOADED, code=code, retry_after_ms=retry_after_ms)


@dataclass(frozen=True, slots=True)
class Answer:
    """How one reason is told: a sentence, and the two numbers where the rejection has them."""

    status: int
    type: str
    sentence: str
    numbers: str = ""

    @property
    def is_retryable(self) -> bool:
        """True where the same request may succeed later."""
        return self.status in (429, 503)

    def tell(self, rejection: Rejection) -> str:
        """Return the sentence, with numbers and with the setting that decided."""
        told = self.sentence
        if self.numbers and rejection.threshold:
            measured, threshold = rejection.measured, rejection.threshold
            told += ": " + self.numbers.format(measured=measured, threshold=threshold)
        return told + (f" (setting: {rejection.knob})." if rejection.knob else ".")


_R = RejectionReason

ANSWERS: dict[RejectionReason, Answer] = {
    _R.CONTEXT_LENGTH_EXCEEDED: Answer(
        400, INVALID_REQUEST, "The prompt and the completion exceed the model's context",
        "{measured:.0f} tokens of {threshold:.0f}",
    ),
    _R.KV_NEVER_FITS: Answer(
        400, INVALID_REQUEST, "The request can never fit into the KV cache",
        "{measured:.0f} blocks of {threshold:.0f}",
    ),
    _R.RATE_NEVER_FITS: Answer(
        400, INVALID_REQUEST, "The request costs more than the tenant's rate limit ever allows",
        "{measured:.0f} of {threshold:.0f}",
    ),
    _R.CLASS_PROMPT_CAP: Answer(
        400, INVALID_REQUEST, "The prompt is longer than its traffic class allows",
        "{measured:.0f} tokens of {threshold:.0f}",
    ),
    _R.TENANT_FORBIDDEN: Answer(403, PERMISSION, "This tenant may not do that"),
    _R.QUEUE_FULL_REQUESTS: Answer(
        429, RATE_LIMIT, "The queue is full", "{measured:.0f} requests of {threshold:.0f}"
    ),
    _R.QUEUE_FULL_TOKENS: Answer(
        429, RATE_LIMIT, "The queue is full", "{measured:.0f} tokens of {threshold:.0f}"
    ),
    _R.TENANT_QUEUE_FULL_REQUESTS: Answer(
        429, RATE_LIMIT, "The tenant's queue is full", "{measured:.0f} requests of {threshold:.0f}"
    ),
    _R.TENANT_QUEUE_FULL_TOKENS: Answer(
        429, RATE_LIMIT, "The tenant's queue is full", "{measured:.0f} tokens of {threshold:.0f}"
    ),
    _R.TENANT_RATE: Answer(
        429, RATE_LIMIT, "The tenant's rate limit is used up",
        "{measured:.0f} tokens, {threshold:.0f} left",
    ),
    _R.TENANT_PAUSED: Answer(429, RATE_LIMIT, "The tenant or its class is paused by the operator"),
    _R.SHED_INFEASIBLE: Answer(
        429, RATE_LIMIT, "The request was shed: its deadline cannot be met any more",
        "{measured:.0f} ms of {threshold:.0f}",
    ),
    _R.SHED_PREDICTED: Answer(
        429, RATE_LIMIT, "The request was shed: its deadline is predicted to be missed",
        "{measured:.0f} ms of {threshold:.0f}",
    ),
    _R.TOKENIZER_BUSY: Answer(
        429, RATE_LIMIT, "The tokenizer is full", "{measured:.0f} of {threshold:.0f}"
    ),
    _R.DEADLINE_EXCEEDED: Answer(504, TIMEOUT, "The request's deadline has passed"),
    _R.DRAINING: Answer(503, OVERLOADED, "The server is draining and takes no new requests"),
    _R.NO_REPLICA: Answer(503, OVERLOADED, "No model replica is available"),
    _R.ENGINE_RESTARTED: Answer(
        503, OVERLOADED, "A part of the engine is starting or has restarted; send the request again"
    ),
    _R.EXECUTOR_FAULT: Answer(500, SERVER, "The model failed on this request"),
}  # fmt: skip
"""The whole mapping; every reason but NONE is here (a test counts)."""

_UNEXPLAINED = Answer(500, SERVER, "The request was ended without a reason")


def from_rejection(
    rejection: Rejection,
    *,
    client_deadline: bool = False,
    num_prompt_tokens: int = 0,
    note: str = "",
) -> ApiError:
    """Return the answer to a refusal; a deadline that the client set is 408 instead of 504."""
    if rejection.reason is RejectionReason.CONTEXT_LENGTH_EXCEEDED and rejection.threshold:
        return context_length_exceeded(
            round(rejection.threshold), num_prompt_tokens, round(rejection.measured)
        )
    answer = ANSWERS.get(rejection.reason, _UNEXPLAINED)
    is_deadline = rejection.reason is RejectionReason.DEADLINE_EXCEEDED
    return ApiError(
        408 if is_deadline and client_deadline else answer.status,
        answer.tell(rejection) + note,
        type_=answer.type,
        code=rejection.reason.code if rejection.reason else None,
        retry_after_ms=(rejection.retry_after_ms or RETRY_AFTER_MS) if answer.is_retryable else 0,
        should_retry=False if is_deadline else None,
        reason=rejection.reason,
    )


def from_failure(failed: Failed) -> ApiError:
    """Return the answer to an operation that the engine ended as a whole."""
    if failed.rejection is not None:
        return from_rejection(
            failed.rejection,
            client_deadline=failed.status == 408,
            num_prompt_tokens=failed.num_prompt_tokens,
        )
    return ApiError(
        failed.status,
        failed.message,
        type_=INVALID_REQUEST if failed.status < 500 else SERVER,
        code=failed.code or None,
        param=failed.param or None,
    )


def from_end(chunk: Chunk) -> ApiError | None:
    """Return the answer to a choice that ended by abort or error; None for all others."""
    if chunk.finish_reason not in ("abort", "error"):
        return None
    generated = chunk.num_output_tokens
    note = f" {generated} tokens had been generated." if generated else ""
    if chunk.rejection is not None:
        return from_rejection(chunk.rejection, client_deadline=chunk.client_deadline, note=note)
    if chunk.finish_reason == "error":
        return from_rejection(Rejection(RejectionReason.EXECUTOR_FAULT), note=note)
    return ApiError(
        503,
        f"The request was cancelled by the operator.{note}",
        type_=OVERLOADED,
        code="cancelled",
        retry_after_ms=RETRY_AFTER_MS,
        should_retry=False,
    )
