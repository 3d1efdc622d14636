"""Qwen2 and Qwen2.5: Llama with biases at queries, keys and values."""

from core.models.config_reader import ConfigReader
from core.models.decoder_config import Features
from core.models.family import Family, windows_by_layer

DEFAULTS: dict[str, object] = {"sliding_window": 4096, "max_window_layers": 28}


def adapt_windows(read: ConfigReader, features: Features, num_layers: int) -> Features:
    """Return the features with windows in the layers from `max_window_layers` on, if any."""
    if not read.flag("use_sliding_window", False) or "sliding_window" not in read:
        return features
    first = read.integer("max_window_layers", 0, 2**20)
    return windows_by_layer(read, features, num_layers, lambda layer: layer >= first)


QWEN2 = Family(
    title="Qwen2",
    model_type="qwen2",
    features=Features(qkv_bias=True),
    defaults=DEFAULTS,
    adapt=adapt_windows,
)
