"""OLMo 2: norms behind attention and MLP instead of before, and of all query heads as one vector.

Source: OLMo Team, "2 OLMo 2 Furious", 2024, section 2.
"""

from core.models.config_reader import ConfigReader
from core.models.decoder_config import Features, WeightNames
from core.models.family import Family, with_attention_bias


def _adapt(read: ConfigReader, features: Features, num_layers: int) -> Features:
    return with_attention_bias(read, features)


OLMO2 = Family(
    title="OLMo 2",
    model_type="olmo2",
    weight_names=WeightNames(
        input_norm=None,
        query_norm="self_attn.q_norm",
        key_norm="self_attn.k_norm",
        attention_post_norm="post_attention_layernorm",
        mlp_norm=None,
        mlp_post_norm="post_feedforward_layernorm",
    ),
    features=Features(norms_whole_query=True),
    defaults={"rms_norm_eps": 1e-5},
    adapt=_adapt,
)
