"""GET /v1/models and /v1/models/{id}: the card of the one model that is served."""

from dataclasses import dataclass

from frontends.http.application.exchange import Exchange
from frontends.openai.parameters import ServedModel

MODELS_PATH = "/v1/models"


def card(model: ServedModel) -> dict[str, object]:
    """Return OpenAI's model object, with vLLM's `max_model_len`."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "headrace",
        "max_model_len": model.max_model_len,
    }


@dataclass(frozen=True, slots=True)
class Models:
    """Both endpoints."""

    model: ServedModel

    async def list(self, exchange: Exchange) -> None:
        """Answer GET /v1/models."""
        await exchange.respond_json({"object": "list", "data": [card(self.model)]})

    async def retrieve(self, exchange: Exchange) -> None:
        """Answer GET /v1/models/{id}; an id may contain slashes."""
        self.model.check_name(exchange.path.removeprefix(f"{MODELS_PATH}/"))
        await exchange.respond_json(card(self.model))
