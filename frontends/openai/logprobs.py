"""Log-probabilities in OpenAI's two shapes.

Pure functions from `TokenLogprob` to JSON-like data; streams call them for each chunk and whole
answers once, so both give the same numbers. JSON has no infinity: `-9999.0` stands for it, as in
OpenAI's interface; a missing log-probability (the first prompt position) is null.
"""

import math
from collections.abc import Sequence

from core.messages.http import TokenLogprob

MINUS_INFINITY = -9999.0


def finite(logprob: float) -> float | None:
    """Return a number that JSON can hold."""
    if math.isnan(logprob):
        return None
    return max(logprob, MINUS_INFINITY)


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, object]:
    """Return the `logprobs` of a chat choice or delta."""
    return {"content": [_chat_entry(entry) for entry in entries], "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprob], offset: int) -> dict[str, object]:
    """Return the `logprobs` of a completion; its first token begins at character `offset`."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.text)
    return {
        "tokens": [entry.text for entry in entries],
        "token_logprobs": [finite(entry.logprob) for entry in entries],
        "top_logprobs": [_best(entry) for entry in entries],
        "text_offset": offsets,
    }


def num_characters(entries: Sequence[TokenLogprob]) -> int:
    """Return how far `entries` move the offset."""
    return sum(len(entry.text) for entry in entries)


def _chat_entry(entry: TokenLogprob) -> dict[str, object]:
    top = [_chat_token(text, logprob, raw) for _, logprob, text, raw in entry.top]
    return {**_chat_token(entry.text, entry.logprob, entry.raw), "top_logprobs": top}


def _chat_token(text: str, logprob: float, raw: bytes) -> dict[str, object]:
    return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}


def _best(entry: TokenLogprob) -> dict[str, float | None] | None:
    """Return the best tokens and the one that stands there; null without log-probability."""
    if math.isnan(entry.logprob):
        return None
    best = {text: finite(logprob) for _, logprob, text, _ in entry.top}
    best.setdefault(entry.text, finite(entry.logprob))
    return best
