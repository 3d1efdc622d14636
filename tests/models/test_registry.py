"""Names to directories, and directories to facts, without loading a tensor."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from core.config.engine import EngineConfig
from core.errors import ModelError
from core.models.directory import weight_files
from core.models.registry import (
    ALIASES,
    DEFAULT_MODEL,
    check_safetensors,
    list_models,
    models_directory,
    read_facts,
    resolve,
)
from tests.support.models.tiny_model import IM_END_ID, write_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model's directory."""
    return write_tiny_model(tmp_path / "model", layers=1)


def test_a_local_directory_is_a_model(model: Path, tmp_path: Path) -> None:
    """A Hugging Face directory is resolved by its path, with the facts of its files."""
    facts = resolve(str(model), tmp_path)
    assert facts.path == model
    assert (facts.vocab_size, facts.max_model_len) == (300, 512)
    assert facts.eos_token_ids == (IM_END_ID,)
    assert facts.weights_bytes == (model / "model.safetensors").stat().st_size


def test_the_generation_config_names_what_ends_a_sequence(model: Path) -> None:
    """eos ids come from generation_config.json if it has them, else from config.json."""
    (model / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert read_facts("m", model).eos_token_ids == (7, 8)
    (model / "generation_config.json").unlink()
    assert read_facts("m", model).eos_token_ids == (IM_END_ID,)


def test_unknown_names_list_the_known(tmp_path: Path) -> None:
    """A name that is neither alias nor directory is an error that lists the aliases."""
    with pytest.raises(ModelError, match="smollm2-135m"):
        resolve("gpt-9", tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_files_are_named(model: Path, tmp_path: Path, name: str) -> None:
    """A directory without one of its files is an error that names the file."""
    (model / name).unlink()
    with pytest.raises(ModelError, match=name):
        resolve(str(model), tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff", b'{"vocab_size": -1}', b"[" * 100_000]
)
def test_damaged_configs_are_named(model: Path, content: bytes) -> None:
    """A config.json that is no configuration is an error that names it."""
    (model / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_facts("m", model)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: (2**60).to_bytes(8, "little") + data[8:],
        lambda data: (1).to_bytes(8, "little") + data[8:],
        lambda data: data[:8] + b"x" + data[9:],
        lambda data: (2).to_bytes(8, "little") + b"{}",
        lambda data: (2).to_bytes(8, "little") + b"[]" + data[10:],
        lambda data: (13).to_bytes(8, "little") + b'{"a":{"x":1}}',
    ],
)
def test_damaged_weights_are_named(model: Path, damage: Callable[[bytes], bytes]) -> None:
    """A safetensors file whose header does not fit its bytes is an error that names it."""
    path = model / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        read_facts("m", model)


def test_shards_are_read_by_their_index(model: Path) -> None:
    """A model in shards is the files of its index, all of them in its own directory."""
    (model / "model.safetensors").rename(model / "shard.safetensors")
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "shard.safetensors"}}))
    assert weight_files(model) == {model / "shard.safetensors": {"a"}}
    assert read_facts("m", model).weights_bytes == check_safetensors(model / "shard.safetensors")
    for names in ({"a": "../shard.safetensors"}, {"a": 5}, {}, "x"):
        index.write_text(json.dumps({"weight_map": names}))
        with pytest.raises(ModelError, match="shards"):
            weight_files(model)


def test_the_default_model_is_the_configurations() -> None:
    """What `headrace models pull` brings without a name is what an engine runs without one."""
    assert EngineConfig().model == DEFAULT_MODEL
    assert DEFAULT_MODEL in ALIASES


def test_the_models_directory_follows_xdg() -> None:
    """Models lie in the XDG cache directory, ~/.cache by default."""
    assert models_directory({"HOME": "/h"}) == Path("/h/.cache/headrace/models")
    assert models_directory({"HOME": "/h", "XDG_CACHE_HOME": "/c"}) == Path("/c/headrace/models")


def test_the_list_tells_what_is_pulled(tmp_path: Path) -> None:
    """Every alias is listed, with whether its directory is there."""
    assert [entry.is_pulled for entry in list_models(tmp_path)] == [False] * len(ALIASES)
    (tmp_path / "smollm2-135m").mkdir()
    assert {entry.name: entry.is_pulled for entry in list_models(tmp_path)}["smollm2-135m"]
