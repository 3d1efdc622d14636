"""Server-sent events of a completion, from a template made once per operation.

Owns: the bytes of an event. Never knows: chat or completions, except through the three pieces given
to it. Everything but the text and the index of a chunk is the same for all chunks of an operation,
so a plain chunk is one join.
"""

import orjson

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
EVENT_END = b"\n\n"


def event(payload: bytes) -> bytes:
    """Return one event with a JSON payload."""
    return b"data: " + payload + EVENT_END


class EventTemplate:
    """The chunks of one operation.

    `head` are the fields before `choices`, `before_text` and `after_text` the JSON around the text
    of a choice. With `has_usage` every chunk says `"usage":null`, as clients that asked for usage
    expect.
    """

    __slots__ = ("_before_index", "_before_text", "_end", "_plain_end", "_starts", "_tail")

    def __init__(
        self, head: dict[str, object], before_text: bytes, after_text: bytes, *, has_usage: bool
    ) -> None:
        self._before_index = b"data: " + orjson.dumps(head)[:-1] + b',"choices":[{"index":'
        self._before_text = before_text
        self._tail = after_text
        self._end = (b'}],"usage":null}' if has_usage else b"}]}") + EVENT_END
        self._plain_end = after_text + b',"logprobs":null,"finish_reason":null' + self._end
        self._starts: dict[int, bytes] = {}

    def plain(self, index: int, text: str) -> bytes:
        """Return a chunk that carries only text."""
        return self._start(index) + orjson.dumps(text) + self._plain_end

    def full(
        self,
        index: int,
        text: str,
        *,
        logprobs: object,
        finish_reason: str | None,
        extra: dict[str, object],
    ) -> bytes:
        """Return a chunk with all fields; `extra` follow `finish_reason` in the choice."""
        parts = [
            self._start(index),
            orjson.dumps(text),
            self._tail,
            b',"logprobs":',
            orjson.dumps(logprobs),
            b',"finish_reason":',
            orjson.dumps(finish_reason),
        ]
        if extra:
            parts += [b",", orjson.dumps(extra)[1:-1]]
        parts.append(self._end)
        return b"".join(parts)

    def _start(self, index: int) -> bytes:
        """Return everything before the text of choice `index`."""
        start = self._starts.get(index)
        if start is None:
            start = self._before_index + str(index).encode() + self._before_text
            self._starts[index] = start
        return start
