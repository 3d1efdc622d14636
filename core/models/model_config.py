"""The facts of a model that its config.json states, checked.

Owns: the keys that all families share, and what is refused before any tensor is read. Never knows:
tensors (`core.models.decoder_weights`); it loads no tensor library.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from core.models.config_reader import ConfigReader
from core.models.decoder_config import DecoderConfig, Features
from core.models.directory import CONFIG_NAME, GENERATION_CONFIG_NAME, read_json_object
from core.models.families.registry import FAMILIES
from core.models.family import Family
from core.models.rope_config import LOCAL_LAYERS, MAX_POSITION, RopeConfig, read_rope

MAX_VOCAB_SIZE = 2**20
MAX_HIDDEN_SIZE = 2**16
MAX_LAYERS = 1024
MAX_HEADS = 1024
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}


def read_model_config(directory: Path) -> DecoderConfig:
    """Return the facts of the model in `directory`: config.json, generation_config.json if any.

    End-of-sequence ids come from generation_config.json when it names them. Raises ModelError.
    """
    path = directory / CONFIG_NAME
    generation_path = directory / GENERATION_CONFIG_NAME
    values = read_json_object(path)
    generation = read_json_object(generation_path) if generation_path.exists() else {}
    return parse_model_config(
        ConfigReader(values, str(path)), ConfigReader(generation, str(generation_path))
    )


def parse_model_config(read: ConfigReader, generation: ConfigReader) -> DecoderConfig:
    """Return the checked facts of config.json and generation_config.json; raises ModelError."""
    refuse_quantized(read)
    if "model_type" not in read:
        raise read.fault("model_type is missing")
    family = FAMILIES[read.choice("model_type", tuple(sorted(FAMILIES)), "")]
    read = read.with_defaults(family.defaults)
    num_layers = read.integer("num_hidden_layers", 1, MAX_LAYERS)
    vocab_size = read.integer("vocab_size", 2, MAX_VOCAB_SIZE)
    hidden_size = read.integer("hidden_size", 2, MAX_HIDDEN_SIZE)
    num_heads = read.integer("num_attention_heads", 1, MAX_HEADS)
    head_dim = _head_dim(read, hidden_size, num_heads)
    max_position = read.integer("max_position_embeddings", 1, MAX_POSITION)
    rope = read_rope(read, head_dim, max_position)
    eos = generation.token_ids("eos_token_id", vocab_size)
    return DecoderConfig(
        family=family.title,
        weight_names=family.weight_names,
        features=family.adapt(read, _features(read, family), num_layers),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=read.integer("intermediate_size", 2, 2**20),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(read, num_heads),
        head_dim=head_dim,
        max_position=rope.max_position(max_position),
        rms_norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=rope,
        local_rope=_local_rope(read, head_dim, max_position) if family.has_local_rope else None,
        tie_word_embeddings=read.flag("tie_word_embeddings", False),
        eos_token_ids=eos or read.token_ids("eos_token_id", vocab_size),
    )


def refuse_quantized(read: ConfigReader) -> None:
    """Raise ModelError if config.json declares quantized weights."""
    quantization = read.mapping("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown")
        raise read.fault(
            f"quantization_config: {method!r} weights are not supported:"
            " take a checkpoint in bfloat16, float16 or float32"
        )


def _features(read: ConfigReader, family: Family) -> Features:
    """Return the family's features with the activation that config.json names, if it does."""
    read.forbid("mlp_bias")
    key = "hidden_activation" if "hidden_activation" in read else "hidden_act"
    names = {activation: name for name, activation in ACTIVATIONS.items()}
    name = read.choice(key, tuple(ACTIVATIONS), names[family.features.activation])
    return replace(family.features, activation=ACTIVATIONS[name])


def _num_kv_heads(read: ConfigReader, num_heads: int) -> int:
    num_kv_heads = read.integer("num_key_value_heads", 1, MAX_HEADS, default=num_heads)
    if num_heads % num_kv_heads:
        raise read.fault(f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly")
    return num_kv_heads


def _head_dim(read: ConfigReader, hidden_size: int, num_heads: int) -> int:
    head_dim = read.integer("head_dim", 2, 1024, default=max(2, hidden_size // num_heads))
    if head_dim % 2:
        raise read.fault(f"head_dim = {head_dim} is odd: rotary embedding needs pairs")
    return head_dim


def _local_rope(read: ConfigReader, head_dim: int, max_position: int) -> RopeConfig:
    """Return the rotary embedding of local layers: never stretched, with a theta of its own."""
    local: Mapping[str, object] = {
        "rope_theta": read.number("rope_local_base_freq"),
        "rope_parameters": read.mapping("rope_parameters"),
    }
    return read_rope(read.inside("local layers", local), head_dim, max_position, LOCAL_LAYERS)
