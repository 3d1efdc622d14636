"""Facts of a model from config.json."""

import json
from pathlib import Path

import pytest

from core.errors import ModelError
from core.models.llama_config import RopeScaling, read_model_config
from tests.support.tiny_model import IM_END_ID, write_tiny_model


def change(directory: Path, values: dict[str, object], name: str = "config.json") -> None:
    """Change keys of one JSON file; None removes."""
    path = directory / name
    content = json.loads(path.read_text())
    content.update(values)
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A tiny model."""
    return write_tiny_model(tmp_path)


def test_facts_are_read(directory: Path) -> None:
    """Shapes, constants and end tokens come from the files."""
    config = read_model_config(directory)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.q_size, config.kv_size) == (64, 32)
    assert config.eos_token_ids == (IM_END_ID,)
    assert config.tie_word_embeddings


def test_end_tokens_of_generation_config_win(directory: Path) -> None:
    """generation_config.json may name several end tokens; without it config.json counts."""
    change(directory, {"eos_token_id": [5, 6]}, "generation_config.json")
    assert read_model_config(directory).eos_token_ids == (5, 6)
    (directory / "generation_config.json").unlink()
    assert read_model_config(directory).eos_token_ids == (IM_END_ID,)


def test_head_size_defaults_to_the_hidden_size_divided(directory: Path) -> None:
    """Without head_dim it is hidden_size / num_attention_heads."""
    change(directory, {"head_dim": None})
    assert read_model_config(directory).head_dim == 16


def test_llama3_rope_scaling_is_read(directory: Path) -> None:
    """The parameters of Llama 3.1's rule are kept."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    change(directory, {"rope_scaling": scaling})
    expected = RopeScaling("llama3", 8.0, 1.0, 4.0, 128)
    assert read_model_config(directory).rope_scaling == expected


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": "4"}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"vocab_size": True}, "vocab_size"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"bos_token_id": 300}, "bos_token_id"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_value_is_named(directory: Path, values: dict[str, object], named: str) -> None:
    """Every value that cannot be served is an error naming the file and the key."""
    change(directory, values)
    with pytest.raises(ModelError, match=named) as caught:
        read_model_config(directory)
    assert "config.json" in str(caught.value) or "rope_parameters" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff\xfe", b'{"a":', b"[" * 100_000])
def test_a_broken_file_is_named(directory: Path, content: bytes) -> None:
    """config.json that is no JSON object is an error naming the path."""
    (directory / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_model_config(directory)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """A directory without config.json is not a model."""
    with pytest.raises(ModelError, match="not a model directory"):
        read_model_config(tmp_path / "nowhere")
