"""Facts of a model from config.json."""

import json
from pathlib import Path

import pytest

from core.errors import ModelError
from core.models.decoder_config import DecoderConfig
from core.models.model_config import read_model_config
from core.models.rope_config import RopeConfig
from tests.support.models.tiny_model import IM_END_ID, write_tiny_model


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
    change(directory, {"eos_token_id": 300})
    with pytest.raises(ModelError, match="eos_token_id"):
        read_model_config(directory)


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
    expected = RopeConfig(
        theta=10000.0, rotary_dim=16, kind="llama3", factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position=128,
    )  # fmt: skip
    assert read_model_config(directory).rope == expected


def configured(directory: Path, **values: object) -> DecoderConfig:
    """The facts after some keys of config.json are changed."""
    change(directory, values)
    return read_model_config(directory)


def test_old_and_new_spelling_of_rope_mean_the_same(directory: Path) -> None:
    """Theta and scaling beside the other keys, or all within rope_parameters."""
    old = configured(directory, rope_theta=500.0, rope_scaling={"type": "linear", "factor": 2.0})
    new = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    assert configured(directory, rope_theta=None, rope_scaling=None, rope_parameters=new) == old
    assert (old.rope.theta, old.rope.kind, old.rope.factor) == (500.0, "linear", 2.0)


def test_the_context_of_stretched_models_is_the_stretched_one(directory: Path) -> None:
    """Yarn and dynamic files state the context of training; linear and longrope the final one."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert configured(directory, rope_scaling=yarn).max_position == 2048
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    assert configured(directory, rope_scaling=dynamic).max_position == 1024
    linear = {"rope_type": "linear", "factor": 2.0}
    assert configured(directory, rope_scaling=linear).max_position == 512


def test_qwen2_windows_begin_at_a_layer(directory: Path) -> None:
    """use_sliding_window gives windows to the layers from max_window_layers on."""
    keys = {"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 1}
    assert configured(directory, **keys).features.windows == ()
    assert configured(directory, use_sliding_window=True).features.windows == (0, 64)
    path = directory / "config.json"
    path.write_text(path.read_text().replace('"sliding_window": 64', '"sliding_window": null'))
    assert read_model_config(directory).features.windows == ()


def test_gemma_layers_alternate_unless_listed(directory: Path) -> None:
    """Gemma 2's even layers are local, five of six of Gemma 3's; layer_types says otherwise."""
    keys = {"sliding_window": 32, "num_hidden_layers": 6, "hidden_act": None}
    gemma2 = configured(directory, model_type="gemma2", **keys)
    assert gemma2.features.windows == (32, 0) * 3
    gemma3 = configured(directory, model_type="gemma3_text")
    assert gemma3.features.windows == (32,) * 5 + (0,)
    assert gemma3.local_rope is not None
    assert (gemma3.rope.theta, gemma3.local_rope.theta) == (10000.0, 10000.0)
    types = ["full_attention"] * 5 + ["sliding_attention"]
    assert configured(directory, layer_types=types).features.windows == (0,) * 5 + (32,)


def test_gemma_defaults_may_be_left_out_or_denied(directory: Path) -> None:
    """Caps that the file leaves out are the family's; null means none."""
    keys = {"model_type": "gemma2", "hidden_act": None, "sliding_window": 32}
    features = configured(directory, **keys).features
    assert (features.attention_softcap, features.logits_softcap) == (50.0, 30.0)
    path = directory / "config.json"
    path.write_text(path.read_text().replace("{", '{"attn_logit_softcapping": null, ', 1))
    assert read_model_config(directory).features.attention_softcap == 0.0


@pytest.mark.parametrize("method", ["fp8", "awq", "gptq", "bitsandbytes"])
def test_quantized_checkpoints_are_refused(directory: Path, method: str) -> None:
    """What config.json says is quantized is refused before any tensor is read, with a way out."""
    with pytest.raises(ModelError, match=rf"config\.json: .*'{method}'.*bfloat16"):
        configured(directory, quantization_config={"quant_method": method, "bits": 4})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"model_type": None}, "model_type is missing"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"model_type": "gemma3"}, "gemma3_text"),
        ({"model_type": "gemma2", "hidden_act": "silu", "sliding_window": 0}, "sliding_window"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "bidirectional"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "list of 2 words"),
        ({"model_type": "gemma2", "layer_types": ["chunked_attention"] * 2}, "chunked"),
        ({"rope_theta": 0.5}, "rope_theta"),
        ({"partial_rotary_factor": 0.05}, "partial_rotary_factor"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": "4"}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"vocab_size": True}, "vocab_size"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 1e400}}, "factor is not finite"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "short_factor"),
        ({"rope_scaling": [1]}, "rope_scaling"),
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
