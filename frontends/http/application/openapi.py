"""The OpenAPI document: paths written by hand, bodies made from the structs that check them.

Owns: the description for machines. Never knows: handlers; a test compares the paths with the
routes.
"""

import msgspec
import orjson

from frontends.openai.schema import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

Schema = dict[str, object]

BODIES = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
SUMMARIES = {
    "/v1/chat/completions": "Complete a conversation, streamed or whole",
    "/v1/completions": "Complete text or token ids, streamed or whole",
    "/v1/models": "List the served model",
    "/v1/models/{model_id}": "Show the served model",
    "/tokenize": "Encode text or a conversation",
    "/detokenize": "Decode token ids",
    "/health": "Live, ready and making progress",
    "/health/live": "The engine's supervision runs",
    "/health/ready": "New requests are admitted",
    "/health/progress": "What runs moves",
    "/metrics": "Prometheus metrics",
    "/version": "The version of this server",
    "/openapi.json": "This document",
    "/": "Where to look",
}
REFERENCE = "#/components/schemas/{name}"
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def openapi_document(version: str) -> bytes:
    """Return the document as JSON."""
    _, schemas = msgspec.json.schema_components(list(BODIES.values()), ref_template=REFERENCE)
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "Headrace", "version": version},
            "paths": {path: _path(path, summary) for path, summary in SUMMARIES.items()},
            "components": {
                "schemas": {**schemas, "Error": ERROR},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"key": []}, {}],
        }
    )


def _path(path: str, summary: str) -> Schema:
    operation: Schema = {"summary": summary, "responses": _responses()}
    if path == "/v1/models/{model_id}":
        operation["parameters"] = [
            {"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    body = BODIES.get(path)
    if body is None:
        return {"get": operation}
    schema = {"$ref": REFERENCE.format(name=body.__name__)}
    operation["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": schema}},
    }
    return {"post": operation}


def _responses() -> Schema:
    error = {"$ref": REFERENCE.format(name="Error")}
    return {
        "200": {"description": "Done"},
        "default": {
            "description": "Refused",
            "content": {"application/json": {"schema": error}},
        },
    }
