"""Tiny random models of every family, made and computed by transformers: the reference.

Owns: a configuration for each family that turns every feature on within a few dozen tokens:
windows shorter than the sequence, heads that are not hidden / heads, an odd vocabulary, caps that
bend; and weights spread widely enough for a fault in any of them to show. Never knows: the engine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

SMALL: dict[str, object] = {
    "vocab_size": 301,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN_ROPE = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LONG_ROPE: dict[str, object] = {
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 9.0],
    },
    "original_max_position_embeddings": 32,
    "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model to make: `model_type`, keys of config.json, and how many tokens to compute."""

    model_type: str
    keys: Mapping[str, object] = field(default_factory=dict)
    num_tokens: int = 41


CASES = {
    "llama": Case("llama", {"head_dim": 32, "tie_word_embeddings": True}),
    "llama-untied": Case("llama", {"attention_bias": True, "num_key_value_heads": 4}),
    "llama3-rope": Case("llama", {"rope_parameters": LLAMA3_ROPE}, 100),
    "linear-rope": Case(
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "dynamic-rope": Case(
        "llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
            "max_position_embeddings": 32,
        },
        100,
    ),
    "yarn-rope": Case("qwen2", {"rope_parameters": YARN_ROPE}, 100),
    "mistral": Case("mistral", {"sliding_window": 9, "head_dim": 32}, 300),
    "qwen2": Case("qwen2"),
    "qwen2-window": Case(
        "qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
    ),
    "qwen3": Case("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma2": Case(
        "gemma2",
        {
            "head_dim": 32,
            "sliding_window": 8,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": Case(
        "gemma3_text",
        {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 20,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "phi3": Case("phi3", {"sliding_window": 20}),
    "phi3-longrope": Case("phi3", LONG_ROPE, 100),
    "phi3-shortrope": Case("phi3", LONG_ROPE, 30),
    "olmo2": Case("olmo2"),
}


def write_model(directory: Path, case: Case, shard_bytes: int = 2**30) -> Path:
    """Write a model of `case` as transformers saves it, random weights, float32."""
    config = AutoConfig.for_model(case.model_type, **{**SMALL, **case.keys})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(_random_weight(name, weight))
    model.save_pretrained(directory, max_shard_size=shard_bytes)
    return directory


def _random_weight(name: str, weight: Tensor) -> Tensor:
    """Vectors vary by a half around what they are; matrices keep the scale of their input."""
    noise = torch.randn_like(weight)
    if weight.dim() == 1:
        return weight + 0.5 * noise
    if "embed_tokens" in name:
        return 0.25 * noise
    scale: float = 1.5 / weight.shape[1] ** 0.5
    return noise * scale


def reference_logits(directory: Path, token_ids: list[int]) -> Tensor:
    """Return transformers' logits of the model in `directory`: float32 [tokens, vocabulary]."""
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        output = model(torch.tensor([token_ids]), use_cache=False)
    logits: Tensor = output.logits[0]
    return logits


def change_config(directory: Path, **values: object) -> None:
    """Change keys of config.json; None removes."""
    path = directory / "config.json"
    content = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
