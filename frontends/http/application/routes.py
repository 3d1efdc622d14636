"""Every route of the main port, and nothing else."""

from starlette.routing import Route, Router

from frontends.http.application.app import Endpoint, Handler
from frontends.http.application.meta import Meta
from frontends.openai.chat import ChatCompletions
from frontends.openai.completions import Completions
from frontends.openai.models import MODELS_PATH, Models
from frontends.openai.tokenize import TokenizeEndpoints


def get(path: str, handler: Handler) -> Route:
    """Return a route for reading."""
    return Route(path, Endpoint(handler), methods=["GET"])


def post(path: str, handler: Handler) -> Route:
    """Return a route for asking."""
    return Route(path, Endpoint(handler), methods=["POST"])


def make_router(
    chat: ChatCompletions,
    completions: Completions,
    models: Models,
    tokenize: TokenizeEndpoints,
    meta: Meta,
) -> Router:
    """Return the router over all endpoints."""
    return Router(
        [
            post("/v1/chat/completions", chat),
            post("/v1/completions", completions),
            get(MODELS_PATH, models.list),
            get(MODELS_PATH + "/{model_id:path}", models.retrieve),
            post("/tokenize", tokenize.tokenize),
            post("/detokenize", tokenize.detokenize),
            get("/health", meta.health),
            get("/health/live", meta.live),
            get("/health/ready", meta.ready),
            get("/health/progress", meta.progress),
            get("/metrics", meta.metrics),
            get("/version", meta.tell_version),
            get("/openapi.json", meta.describe),
            get("/", meta.welcome),
        ],
        redirect_slashes=False,
    )
