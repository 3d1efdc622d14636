"""What describes a model family, and the readings that several families share.

Owns: `Family`, and the rules of config.json for biases and windows. Never knows: any one family.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from core.models.config_reader import ConfigReader
from core.models.decoder_config import Features, WeightNames
from core.models.rope_config import FULL_LAYERS, LOCAL_LAYERS, MAX_POSITION

Adapt = Callable[[ConfigReader, Features, int], Features]
"""Features of one model: what config.json says on top of the family's; the int is num_layers."""


def as_described(read: ConfigReader, features: Features, num_layers: int) -> Features:
    """Return the family's features: config.json has no say."""
    return features


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family. `defaults` are the values of keys that its config.json may leave out."""

    title: str
    model_type: str
    weight_names: WeightNames = field(default_factory=WeightNames)
    features: Features = field(default_factory=Features)
    defaults: Mapping[str, object] = field(default_factory=dict)
    adapt: Adapt = as_described
    has_local_rope: bool = False


def with_attention_bias(read: ConfigReader, features: Features) -> Features:
    """Return the features with all four biases of attention if `attention_bias` says so."""
    has_bias = read.flag("attention_bias", False)
    return replace(features, qkv_bias=has_bias, out_bias=has_bias)


def window_everywhere(read: ConfigReader, features: Features, num_layers: int) -> Features:
    """Return the features with `sliding_window`, unless null, in every layer."""
    if "sliding_window" not in read:
        return features
    return replace(features, windows=(_window(read),) * num_layers)


def windows_by_layer(
    read: ConfigReader, features: Features, num_layers: int, is_local: Callable[[int], bool]
) -> Features:
    """Return the features with windows where `layer_types`, or else `is_local`, says so."""
    types = tuple(LOCAL_LAYERS if is_local(layer) else FULL_LAYERS for layer in range(num_layers))
    if "layer_types" in read:
        types = read.words("layer_types", (FULL_LAYERS, LOCAL_LAYERS), num_layers)
    if LOCAL_LAYERS not in types:
        return features
    window = _window(read)
    return replace(features, windows=tuple(window if t == LOCAL_LAYERS else 0 for t in types))


def _window(read: ConfigReader) -> int:
    return read.integer("sliding_window", 1, MAX_POSITION)
