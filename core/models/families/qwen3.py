"""Qwen3 (dense): no biases, and a norm of each query and key head before it is rotated."""

from core.models.config_reader import ConfigReader
from core.models.decoder_config import Features, WeightNames
from core.models.families.qwen2 import DEFAULTS, adapt_windows
from core.models.family import Family, with_attention_bias


def _adapt(read: ConfigReader, features: Features, num_layers: int) -> Features:
    return adapt_windows(read, with_attention_bias(read, features), num_layers)


QWEN3 = Family(
    title="Qwen3",
    model_type="qwen3",
    weight_names=WeightNames(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm"),
    defaults={**DEFAULTS, "head_dim": 128},
    adapt=_adapt,
)
