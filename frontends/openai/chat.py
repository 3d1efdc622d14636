"""POST /v1/chat/completions.

Owns: what chat asks of the engine, and the JSON of its answers. Never knows: how answers are sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import orjson

from core.messages.http import Chunk, Queued
from core.messages.tokenizer import Generate
from core.sampling_params import NO_LOGPROBS
from frontends.http.application.exchange import Exchange
from frontends.http.application.sse import EventTemplate, event
from frontends.http.errors import bad_request
from frontends.openai.answers import Choice, Usage
from frontends.openai.decode import FieldWarner, decode_json, refuse_unsupported
from frontends.openai.generation import Generator
from frontends.openai.logprobs import chat_logprobs
from frontends.openai.parameters import Asked, ServedModel, generate_message, told_tier
from frontends.openai.prompts import chat_prompt
from frontends.openai.schema import ChatCompletionRequest

DECODER = msgspec.json.Decoder(ChatCompletionRequest)


@dataclass(frozen=True, slots=True)
class ChatCompletions:
    """The endpoint."""

    generator: Generator
    model: ServedModel
    warner: FieldWarner

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        body = await exchange.body()
        request = decode_json(DECODER, body)
        self.warner.look(request, body)
        refuse_unsupported(request)
        self.model.check_name(request.model)
        message = generate_message(exchange, request, _asked(request), self.model)
        renderer = ChatRenderer(message, request, self.model.name, self.generator.created_s())
        await self.generator.answer(exchange, message, renderer, is_stream=bool(request.stream))


def _asked(request: ChatCompletionRequest) -> Asked:
    prompt = chat_prompt(request.messages, add_generation_prompt=request.add_generation_prompt)
    return Asked(prompts=[prompt], max_tokens=_max_tokens(request), num_logprobs=_logprobs(request))


def _max_tokens(request: ChatCompletionRequest) -> int | None:
    """Return the wish of the newer field, else of the older one."""
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    max_tokens: int | None = getattr(request, name)
    if max_tokens == 0:
        raise bad_request(f"The parameter '{name}' must be at least 1.", name)
    return max_tokens


def _logprobs(request: ChatCompletionRequest) -> int:
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request(
            "The parameter 'top_logprobs' needs 'logprobs' to be true.", "top_logprobs"
        )
    return (request.top_logprobs or 0) if request.logprobs else NO_LOGPROBS


class ChatRenderer:
    """The JSON of one chat completion."""

    def __init__(
        self, message: Generate, request: ChatCompletionRequest, model_name: str, created_s: int
    ) -> None:
        self._id = f"chatcmpl-{message.operation_id}"
        self._n = message.n
        self._has_logprobs = message.want_logprobs
        self._has_token_ids = message.want_token_ids
        self._wants_usage = request.stream_options is not None and bool(
            request.stream_options.include_usage
        )
        self._head: dict[str, object] = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": created_s,
            "model": model_name,
            **told_tier(message.traffic_class, request),
        }
        self._request = request
        self._template = self._new_template()
        self._prompt_token_ids: list[int] | None = None

    def queued(self, queued: Queued) -> None:
        """Note the prompt's token ids, and the tier that serves it."""
        self._head |= told_tier(queued.traffic_class, self._request)
        self._template = self._new_template()
        if self._has_token_ids and queued.prompt_token_ids:
            self._prompt_token_ids = queued.prompt_token_ids[0]

    def opening(self) -> bytes:
        """Return the event that gives every choice its role."""
        delta = {"role": "assistant", "content": ""}
        choices = [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            for index in range(self._n)
        ]
        return b"".join(self._event({"choices": [choice]}) for choice in choices)

    def chunk(self, chunk: Chunk) -> bytes:
        """Return the event of a chunk; empty if it has nothing to show yet."""
        if not (self._has_logprobs or self._has_token_ids or chunk.finish_reason):
            return self._template.plain(chunk.choice, chunk.text) if chunk.text else b""
        extra: dict[str, object] = {}
        if chunk.finish_reason:
            extra["stop_reason"] = chunk.stop_reason
        if self._has_token_ids:
            extra["token_ids"] = chunk.token_ids
        return self._template.full(
            chunk.choice,
            chunk.text,
            logprobs=chat_logprobs(chunk.logprobs) if self._has_logprobs else None,
            finish_reason=chunk.finish_reason or None,
            extra=extra,
        )

    def usage(self, usage: Usage) -> bytes:
        """Return the event with the usage, if it was asked for."""
        if not self._wants_usage:
            return b""
        return event(orjson.dumps({**self._head, "choices": [], "usage": usage.as_dict()}))

    def body(self, choices: Sequence[Choice], usage: Usage) -> dict[str, object]:
        """Return the whole answer."""
        answer = {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage.as_dict(),
        }
        if self._prompt_token_ids is not None:
            answer["prompt_token_ids"] = self._prompt_token_ids
        return answer

    def _new_template(self) -> EventTemplate:
        return EventTemplate(self._head, b',"delta":{"content":', b"}", has_usage=self._wants_usage)

    def _choice(self, index: int, choice: Choice) -> dict[str, object]:
        shown: dict[str, object] = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": chat_logprobs(choice.logprobs) if self._has_logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._has_token_ids:
            shown["token_ids"] = choice.token_ids
        return shown

    def _event(self, fields: dict[str, object]) -> bytes:
        """Return an event outside the template; the first one carries the prompt's token ids."""
        payload = {**self._head, **fields}
        if self._wants_usage:
            payload["usage"] = None
        if self._prompt_token_ids is not None:
            payload["prompt_token_ids"] = self._prompt_token_ids
        return event(orjson.dumps(payload))
