"""POST /tokenize and /detokenize, in vLLM's shape."""

from dataclasses import dataclass

import msgspec

from core.messages.http import Failed
from core.messages.tokenizer import Detokenize, Prompt, TextPrompt, Tokenize
from frontends.engine_client import EngineClient, new_operation_id
from frontends.http.application.exchange import Exchange
from frontends.http.errors import bad_request, from_failure
from frontends.openai.decode import decode_json
from frontends.openai.parameters import ServedModel
from frontends.openai.prompts import chat_prompt
from frontends.openai.schema import DetokenizeRequest, TokenizeRequest

TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


@dataclass(frozen=True, slots=True)
class TokenizeEndpoints:
    """Both endpoints."""

    client: EngineClient
    model: ServedModel

    async def tokenize(self, exchange: Exchange) -> None:
        """Answer POST /tokenize."""
        request = decode_json(TOKENIZE, await exchange.body())
        self.model.check_name(request.model)
        tenant = exchange.authenticated().name
        answer = await self.client.tokenize(Tokenize(new_operation_id(), tenant, _prompt(request)))
        if isinstance(answer, Failed):
            raise from_failure(answer)
        await exchange.respond_json(
            {
                "count": len(answer.token_ids),
                "max_model_len": self.model.max_model_len,
                "tokens": answer.token_ids,
                "token_strs": answer.token_strs if request.return_token_strs else None,
            }
        )

    async def detokenize(self, exchange: Exchange) -> None:
        """Answer POST /detokenize."""
        request = decode_json(DETOKENIZE, await exchange.body())
        self.model.check_name(request.model)
        tenant = exchange.authenticated().name
        answer = await self.client.detokenize(
            Detokenize(new_operation_id(), tenant, request.tokens)
        )
        if isinstance(answer, Failed):
            raise from_failure(answer)
        await exchange.respond_json({"prompt": answer.text})


def _prompt(request: TokenizeRequest) -> Prompt:
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("Send exactly one of 'prompt' and 'messages'.", "prompt")
    if request.messages is not None:
        return chat_prompt(request.messages, add_generation_prompt=request.add_generation_prompt)
    assert request.prompt is not None
    return TextPrompt(request.prompt)
