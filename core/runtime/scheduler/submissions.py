"""From a tokenizer's `Submit` to a `Request`, if it makes sense.

Owns: every bound of a submission that later code relies on. Never knows: whether there is room for
the request. The sender is one of our own processes, but a bug there must not crash the scheduler or
let one request write into another one's span.
"""

from collections.abc import Sequence

from core.kv_cache.digest import DIGEST_BYTES, split_digests
from core.messages.scheduler import Submit
from core.request import Request
from ipc.spans import Ids

MAX_REQUEST_ID = 2**64 - 1


class SubmitError(ValueError):
    """A submission that cannot be a request; the message says which bound it breaks."""


def request_of(submit: Submit, arenas: Sequence[Ids], block_size: int) -> Request:
    """Return the request of a submission, its span seen in the arena; raises SubmitError."""
    _check(0 <= submit.request_id <= MAX_REQUEST_ID, "request_id", submit.request_id)
    _check(0 <= submit.tokenizer < len(arenas), "tokenizer", submit.tokenizer)
    arena = arenas[submit.tokenizer]
    _check(submit.prompt_len > 0, "prompt_len", submit.prompt_len)
    _check(submit.max_tokens >= 0, "max_tokens", submit.max_tokens)
    end = submit.span_start + submit.prompt_len + submit.max_tokens
    _check(submit.span_start >= 0 and end <= len(arena), "span end", end)
    _check(0 <= submit.resume_from <= submit.max_tokens, "resume_from", submit.resume_from)
    num_blocks = submit.prompt_len // block_size
    _check(len(submit.digests) in (0, num_blocks * DIGEST_BYTES), "digests", len(submit.digests))
    return Request(
        request_id=submit.request_id,
        tokenizer=submit.tokenizer,
        tenant=submit.tenant,
        token_ids=arena[submit.span_start : end],
        span_start=submit.span_start,
        prompt_len=submit.prompt_len,
        max_tokens=submit.max_tokens,
        arrival_ns=submit.arrival_ns,
        sampling=submit.sampling,
        traffic_class=submit.traffic_class,
        priority=submit.priority,
        adapter=submit.adapter,
        queue_deadline_ns=submit.queue_deadline_ns,
        end_deadline_ns=submit.end_deadline_ns,
        client_deadline=submit.client_deadline,
        prompt_digests=split_digests(submit.digests),
        num_output_tokens=submit.resume_from,
        was_queued=submit.was_queued,
        was_started=submit.was_started,
    )


def _check(holds: bool, name: str, value: object) -> None:
    if not holds:
        raise SubmitError(f"{name} = {value}")
