"""The files of a Hugging Face model directory: which there are, and their JSON content.

Owns: file names, how large a JSON file may be, which safetensors files make up a model. Never
knows: what is in them (`core.models.model_config`, `core.models.weights`, `core.tokenizer`).
"""

import json
from pathlib import Path

from core.errors import ModelError

MAX_JSON_BYTES = 64 * 2**20
CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
WEIGHTS_NAME = "model.safetensors"
WEIGHTS_INDEX_NAME = "model.safetensors.index.json"


def read_json_object(path: Path) -> dict[str, object]:
    """Return the JSON object in a file; raises ModelError naming it."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f"{path} is larger than {MAX_JSON_BYTES} bytes")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: {path.parent} is not a model directory") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} is not a JSON object")
    return content


def weight_files(directory: Path) -> dict[Path, set[str] | None]:
    """Return the safetensors files of a model, one or the shards of its index.

    For a shard, the tensors that the index says it holds. Raises ModelError.
    """
    single = directory / WEIGHTS_NAME
    if single.is_file():
        return {single: None}
    index = directory / WEIGHTS_INDEX_NAME
    if not index.is_file():
        raise ModelError(f"model directory {directory} has no {WEIGHTS_NAME}")
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} names no shards: its weight_map is missing or empty")
    shards: dict[Path, set[str] | None] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or name != Path(name).name:
            raise ModelError(f"{index} names shards outside its directory: {name!r}")
        stated = shards.setdefault(directory / name, set())
        assert stated is not None
        stated.add(tensor)
    return shards
