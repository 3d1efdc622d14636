"""Gemma 2: norms before and after attention and MLP, capped scores, every other layer local.

Source: Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024, section 2.
"""

from dataclasses import replace

from core.models.config_reader import ConfigReader
from core.models.decoder_config import Features, WeightNames
from core.models.family import Family, windows_by_layer, with_attention_bias

FEATURES = Features(activation="gelu", norms_add_one=True, scales_embedding=True)
DEFAULTS: dict[str, object] = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
WEIGHT_NAMES = WeightNames(
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)


def adapt_gemma(
    read: ConfigReader, features: Features, num_layers: int, default_period: int
) -> Features:
    """Return the features with scale, caps and windows; the last layer of each period sees all."""
    read.forbid("use_bidirectional_attention")
    period = read.integer("sliding_window_pattern", 1, 2**20, default_period)
    features = replace(
        with_attention_bias(read, features),
        attention_scale=read.number("query_pre_attn_scalar") ** -0.5,
        attention_softcap=read.number("attn_logit_softcapping", 0.0),
        logits_softcap=read.number("final_logit_softcapping", 0.0),
    )
    return windows_by_layer(read, features, num_layers, lambda layer: (layer + 1) % period != 0)


def _adapt(read: ConfigReader, features: Features, num_layers: int) -> Features:
    return adapt_gemma(read, features, num_layers, default_period=2)


GEMMA2 = Family(
    title="Gemma 2",
    model_type="gemma2",
    weight_names=WEIGHT_NAMES,
    features=FEATURES,
    defaults={**DEFAULTS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    adapt=_adapt,
)
