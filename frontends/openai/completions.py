"""POST /v1/completions.

Owns: what completions ask of the engine, and the JSON of their answers, echo included. Never knows:
how answers are sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import orjson

from core.messages.http import Chunk, Queued, TokenLogprob
from core.messages.tokenizer import Generate
from core.sampling_params import NO_LOGPROBS
from frontends.http.application.exchange import Exchange
from frontends.http.application.sse import EventTemplate, event
from frontends.http.errors import bad_request
from frontends.openai.answers import Choice, Usage
from frontends.openai.decode import FieldWarner, decode_json, refuse_unsupported
from frontends.openai.generation import Generator
from frontends.openai.logprobs import completion_logprobs, num_characters
from frontends.openai.parameters import Asked, ServedModel, generate_message, told_tier
from frontends.openai.prompts import completion_prompts
from frontends.openai.schema import CompletionRequest

DEFAULT_MAX_TOKENS = 16  # as in OpenAI's interface
DECODER = msgspec.json.Decoder(CompletionRequest)


@dataclass(frozen=True, slots=True)
class Completions:
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
        message = generate_message(exchange, request, _asked(request, self.model), self.model)
        renderer = CompletionRenderer(message, request, self.model.name, self.generator.created_s())
        await self.generator.answer(exchange, message, renderer, is_stream=bool(request.stream))


def _asked(request: CompletionRequest, model: ServedModel) -> Asked:
    echo = bool(request.echo)
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == 0 and not echo:
        raise bad_request("The parameter 'max_tokens' may be 0 only with 'echo'.", "max_tokens")
    num_logprobs = NO_LOGPROBS if request.logprobs is None else request.logprobs
    return Asked(
        prompts=completion_prompts(
            request.prompt, max_prompts=model.max_prompts, max_model_len=model.max_model_len
        ),
        max_tokens=max_tokens,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_logprobs if echo else NO_LOGPROBS,
        echo=echo,
    )


class CompletionRenderer:
    """The JSON of one completions answer. With echo, a choice's text begins with its prompt's."""

    def __init__(
        self, message: Generate, request: CompletionRequest, model_name: str, created_s: int
    ) -> None:
        self._n = message.n
        self._num_choices = len(message.prompts) * message.n
        self._has_logprobs = message.want_logprobs
        self._has_token_ids = message.want_token_ids
        self._wants_usage = request.stream_options is not None and bool(
            request.stream_options.include_usage
        )
        self._head: dict[str, object] = {
            "id": f"cmpl-{message.operation_id}",
            "object": "text_completion",
            "created": created_s,
            "model": model_name,
            **told_tier(message.traffic_class, request),
        }
        self._request = request
        self._template = self._new_template()
        self._prompt_texts: dict[int, str] = {}
        self._prompt_token_ids: dict[int, list[int]] = {}
        self._offsets: dict[int, int] = {}

    def queued(self, queued: Queued) -> None:
        """Note the tier that serves them; by choice the prompts' texts (echo) and token ids."""
        self._head |= told_tier(queued.traffic_class, self._request)
        self._template = self._new_template()
        for choice in range(self._num_choices):
            prompt = choice // self._n
            if queued.prompt_texts:
                self._prompt_texts[choice] = queued.prompt_texts[prompt]
            if self._has_token_ids and queued.prompt_token_ids:
                self._prompt_token_ids[choice] = queued.prompt_token_ids[prompt]

    def opening(self) -> bytes:
        """Completions have no event before their output."""
        return b""

    def chunk(self, chunk: Chunk) -> bytes:
        """Return the event of a chunk; a choice's first one begins with the echoed prompt."""
        text = self._prompt_texts.pop(chunk.choice, "") + chunk.text
        entries = [*chunk.prompt_logprobs, *chunk.logprobs]
        if not (entries or self._has_token_ids or chunk.finish_reason):
            return self._template.plain(chunk.choice, text) if text else b""
        return self._template.full(
            chunk.choice,
            text,
            logprobs=self._logprobs(chunk.choice, entries),
            finish_reason=chunk.finish_reason or None,
            extra=self._extra(chunk),
        )

    def usage(self, usage: Usage) -> bytes:
        """Return the event with the usage, if it was asked for."""
        if not self._wants_usage:
            return b""
        return event(orjson.dumps({**self._head, "choices": [], "usage": usage.as_dict()}))

    def body(self, choices: Sequence[Choice], usage: Usage) -> dict[str, object]:
        """Return the whole answer."""
        return {
            **self._head,
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage.as_dict(),
        }

    def _new_template(self) -> EventTemplate:
        return EventTemplate(self._head, b',"text":', b"", has_usage=self._wants_usage)

    def _choice(self, index: int, choice: Choice) -> dict[str, object]:
        shown: dict[str, object] = {
            "index": index,
            "text": self._prompt_texts.get(index, "") + choice.text,
            "logprobs": self._logprobs(index, choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._has_token_ids:
            shown["prompt_token_ids"] = self._prompt_token_ids.get(index)
            shown["token_ids"] = choice.token_ids
        return shown

    def _logprobs(self, index: int, entries: Sequence[TokenLogprob]) -> dict[str, object] | None:
        """Return the entries of a choice and move its offset behind them."""
        if not self._has_logprobs:
            return None
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + num_characters(entries)
        return completion_logprobs(entries, offset)

    def _extra(self, chunk: Chunk) -> dict[str, object]:
        extra: dict[str, object] = {}
        if chunk.finish_reason:
            extra["stop_reason"] = chunk.stop_reason
        if self._has_token_ids:
            prompt_token_ids = self._prompt_token_ids.pop(chunk.choice, None)
            if prompt_token_ids is not None:
                extra["prompt_token_ids"] = prompt_token_ids
            extra["token_ids"] = chunk.token_ids
        return extra
