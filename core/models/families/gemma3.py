"""Gemma 3, text only: Gemma 2 with norms of query and key heads instead of caps.

Five of six layers are local and turn with a theta of their own. Source: Gemma Team, "Gemma 3
Technical Report", 2025, section 2.
"""

from dataclasses import replace

from core.models.config_reader import ConfigReader
from core.models.decoder_config import Features
from core.models.families.gemma2 import DEFAULTS, FEATURES, WEIGHT_NAMES, adapt_gemma
from core.models.family import Family


def _adapt(read: ConfigReader, features: Features, num_layers: int) -> Features:
    return adapt_gemma(read, features, num_layers, default_period=6)


GEMMA3 = Family(
    title="Gemma 3",
    model_type="gemma3_text",
    weight_names=replace(WEIGHT_NAMES, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm"),
    features=FEATURES,
    defaults={**DEFAULTS, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    adapt=_adapt,
    has_local_rope=True,
)
