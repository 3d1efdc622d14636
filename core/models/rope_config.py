"""What config.json says of rotary embedding, in its old and its new spelling.

Owns: `RopeConfig` and how it is read: theta, how frequencies are stretched, how much of a head
turns. Never knows: tensors (`core.models.rope` makes the table).

Old files have `rope_theta` and `rope_scaling` beside the other keys; newer ones have everything in
`rope_parameters`, once or once for each kind of layer.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from core.models.config_reader import ConfigReader

MAX_POSITION = 2**24
FULL_LAYERS, LOCAL_LAYERS = "full_attention", "sliding_attention"
OUTER_KEYS = ("rope_theta", "partial_rotary_factor")
ALIASES = {"su": "longrope", "none": "default"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """How queries and keys are turned. `kind` says which of the other fields count.

    `original_max_position` is the context of training before it was stretched, tokens;
    `attention_factor` multiplies cosines and sines; the factors of longrope are one a pair.
    """

    theta: float
    rotary_dim: int  # the first dimensions of a head, the others stay
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def max_position(self, stated: int) -> int:
        """Return the longest context for a `stated` max_position_embeddings, tokens.

        Files of yarn and dynamic models state the context before it is stretched.
        """
        stretched = stated
        if self.kind in ("dynamic", "yarn"):
            stretched = int(self.original_max_position * self.factor)
        return min(max(stated, stretched), MAX_POSITION)


def read_rope(
    read: ConfigReader, head_dim: int, max_position: int, layers: str = FULL_LAYERS
) -> RopeConfig:
    """Return the rotary embedding of `layers`; raises ModelError.

    `max_position` is what config.json states, tokens.
    """
    values = read.inside("rope_parameters", _values(read, layers))
    rotary_dim = int(head_dim * values.number("partial_rotary_factor", 1.0))
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise values.fault(f"partial_rotary_factor turns {rotary_dim} of {head_dim} dimensions")
    theta = values.number("rope_theta", 10000.0)
    if theta <= 1:
        raise values.fault(f"rope_theta = {theta} is not above 1")
    rope = RopeConfig(theta=theta, rotary_dim=rotary_dim)
    return KINDS[_kind(values)](values, rope, max_position)


def _values(read: ConfigReader, layers: str) -> Mapping[str, object]:
    outer = {key: read.number(key) for key in OUTER_KEYS if key in read}
    parameters = read.mapping("rope_parameters")
    if FULL_LAYERS in parameters or LOCAL_LAYERS in parameters:
        parameters = read.inside("rope_parameters", parameters).mapping(layers)
    values = {**outer, **read.mapping("rope_scaling"), **parameters}
    if "original_max_position_embeddings" in read:  # Phi-3 keeps it outside
        key = "original_max_position_embeddings"
        values[key] = read.integer(key, 1, MAX_POSITION)
    return values


def _kind(values: ConfigReader) -> str:
    key = "rope_type" if "rope_type" in values else "type"
    kind = values.choice(key, (*KINDS, *ALIASES), "default")
    if kind == "yarn" and "short_factor" in values:  # what Phi-3 once called it
        return "longrope"
    return ALIASES.get(kind, kind)


def _original(values: ConfigReader, max_position: int) -> int:
    return values.integer("original_max_position_embeddings", 2, MAX_POSITION, max_position)


def _default(values: ConfigReader, rope: RopeConfig, max_position: int) -> RopeConfig:
    return rope


def _linear(values: ConfigReader, rope: RopeConfig, max_position: int) -> RopeConfig:
    return replace(rope, kind="linear", factor=values.number("factor"))


def _dynamic(values: ConfigReader, rope: RopeConfig, max_position: int) -> RopeConfig:
    factor = values.number("factor")
    if rope.rotary_dim < 4:
        raise values.fault("rope_type = 'dynamic' needs more than one rotary pair")
    return replace(rope, kind="dynamic", factor=factor, original_max_position=max_position)


def _llama3(values: ConfigReader, rope: RopeConfig, max_position: int) -> RopeConfig:
    low, high = values.number("low_freq_factor", 1.0), values.number("high_freq_factor", 4.0)
    if not low < high:
        raise values.fault(f"low_freq_factor = {low} is not below high_freq_factor = {high}")
    return replace(
        rope,
        kind="llama3",
        factor=values.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=_original(values, max_position),
    )


def _yarn(values: ConfigReader, rope: RopeConfig, max_position: int) -> RopeConfig:
    original = _original(values, max_position)
    factor = values.number("factor", max_position / original)
    return replace(
        rope,
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=values.number("beta_fast", 32.0),
        beta_slow=values.number("beta_slow", 1.0),
        truncate=values.flag("truncate", True),
        attention_factor=values.number("attention_factor", _yarn_attention(values, factor)),
    )


def _yarn_attention(values: ConfigReader, factor: float) -> float:
    """Return the paper's 0.1 ln(s) + 1 (YaRN, section 3.4), or DeepSeek's quotient of two."""

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if "mscale" in values and "mscale_all_dim" in values:
        return magnitude(values.number("mscale")) / magnitude(values.number("mscale_all_dim"))
    return magnitude(1.0)


def _longrope(values: ConfigReader, rope: RopeConfig, max_position: int) -> RopeConfig:
    original = _original(values, max_position)
    factor = values.number("factor", max_position / original)
    longer = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return replace(
        rope,
        kind="longrope",
        factor=factor,
        original_max_position=original,
        attention_factor=values.number("attention_factor", longer),
        short_factors=values.numbers("short_factor", rope.rotary_dim // 2),
        long_factors=values.numbers("long_factor", rope.rotary_dim // 2),
    )


KINDS: dict[str, Callable[[ConfigReader, RopeConfig, int], RopeConfig]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
