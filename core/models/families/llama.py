"""Llama 2 and 3, and what is built like them: SmolLM2, TinyLlama, Yi."""

from core.models.config_reader import ConfigReader
from core.models.decoder_config import Features
from core.models.family import Family, with_attention_bias


def _adapt(read: ConfigReader, features: Features, num_layers: int) -> Features:
    return with_attention_bias(read, features)


LLAMA = Family(title="Llama", model_type="llama", adapt=_adapt)
