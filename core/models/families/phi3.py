"""Phi-3, Phi-3.5 and Phi-4 (dense): Llama whose projections are joined in the files.

Longer contexts by longrope; in Phi-4-mini only a part of each head turns.
"""

from core.models.decoder_config import WeightNames
from core.models.family import Family, window_everywhere

PHI3 = Family(
    title="Phi-3",
    model_type="phi3",
    weight_names=WeightNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    adapt=window_everywhere,
)
