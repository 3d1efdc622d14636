"""Reads the JSON files of a Hugging Face model directory; loads no tensor library.

Owns: which files are looked at and how large they may be. Never knows: tensors
(`core.models.weights`), text (`core.tokenizer`).
"""

import json
from pathlib import Path

from core.errors import ModelError
from core.models.llama_config import LlamaConfig, parse_llama_config

MAX_JSON_BYTES = 64 * 2**20


def read_model_config(directory: Path) -> LlamaConfig:
    """Return the facts of the model in `directory`: config.json, generation_config.json if any.

    End-of-sequence ids come from generation_config.json when it names them. Raises ModelError.
    """
    path = directory / "config.json"
    generation_path = directory / "generation_config.json"
    generation = read_json_object(generation_path) if generation_path.exists() else {}
    return parse_llama_config(read_json_object(path), generation, str(path))


def read_json_object(path: Path) -> dict[str, object]:
    """Return the JSON object in `path`; raises ModelError if there is none."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f"{path} is larger than {MAX_JSON_BYTES} bytes")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: {path.parent} is not a model directory") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object")
    return content
