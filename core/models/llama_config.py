"""The facts of a Llama-family model that its config.json states, checked.

Owns: `LlamaConfig` and what is acceptable in it. Never knows: tensors (`core.models.weights`); it
loads no tensor library.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import ModelError
from core.models.directory import CONFIG_NAME, GENERATION_CONFIG_NAME, read_json_object

SUPPORTED_MODEL_TYPES = ("llama",)
MAX_VOCAB_SIZE = 2**20
MAX_HIDDEN_SIZE = 2**16
MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. `kind` is `none`, `linear` or `llama3`."""

    kind: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Shapes and constants of the model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    tie_word_embeddings: bool = False
    bos_token_id: int = -1  # -1: none
    eos_token_ids: tuple[int, ...] = ()  # any of them ends a sequence

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads."""
        return self.num_kv_heads * self.head_dim


class _Reader:
    """Reads typed values of one JSON object; `where` names it in errors."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self._where = where

    def fault(self, message: str) -> ModelError:
        return ModelError(f"{self._where}: {message}")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.fault(f"{key} = {value!r} is not an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.fault(f"{key} = {value!r} is not a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.fault(f"{key} = {value!r} is not true or false")
        return value

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        value = self._values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token_id in ids:
            if not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
                raise self.fault(f"{key} = {value!r} is not inside the vocabulary of {vocab_size}")
        return tuple(ids)

    def only(self, key: str, allowed: tuple[object, ...]) -> None:
        value = self._values.get(key)
        if value not in allowed:
            raise self.fault(f"{key} = {value!r} is not supported (only {allowed[-1]!r})")

    def mapping(self, key: str) -> Mapping[str, object]:
        value = self._values.get(key) or {}
        if not isinstance(value, dict):
            raise self.fault(f"{key} = {value!r} is not an object")
        return value


def read_model_config(directory: Path) -> LlamaConfig:
    """Return the facts of the model in `directory`: config.json, generation_config.json if any.

    End-of-sequence ids come from generation_config.json when it names them. Raises ModelError.
    """
    path = directory / CONFIG_NAME
    generation_path = directory / GENERATION_CONFIG_NAME
    generation = read_json_object(generation_path) if generation_path.exists() else {}
    return parse_llama_config(read_json_object(path), generation, str(path))


def parse_llama_config(
    values: Mapping[str, object], generation: Mapping[str, object], where: str
) -> LlamaConfig:
    """Return the checked facts of config.json `values` and generation_config.json `generation`.

    `where` names the file in errors. Raises ModelError.
    """
    read = _Reader(values, where)
    read.only("model_type", SUPPORTED_MODEL_TYPES)
    read.only("hidden_act", (None, "silu"))
    for key in ("attention_bias", "mlp_bias"):
        read.only(key, (None, False))
    vocab_size = read.integer("vocab_size", 2, MAX_VOCAB_SIZE)
    hidden_size = read.integer("hidden_size", 2, MAX_HIDDEN_SIZE)
    num_heads = read.integer("num_attention_heads", 1, 1024)
    num_kv_heads = read.integer("num_key_value_heads", 1, 1024, default=num_heads)
    if num_heads % num_kv_heads:
        raise read.fault(f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly")
    eos = _Reader(generation, where).token_ids("eos_token_id", vocab_size)
    bos = read.token_ids("bos_token_id", vocab_size)
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=read.integer("intermediate_size", 2, 2**20),
        num_layers=read.integer("num_hidden_layers", 1, MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(read, hidden_size, num_heads),
        max_position=read.integer("max_position_embeddings", 1, 2**24),
        rms_norm_eps=read.number("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(read),
        rope_scaling=_rope_scaling(read, where),
        tie_word_embeddings=read.flag("tie_word_embeddings", False),
        bos_token_id=bos[0] if bos else -1,
        eos_token_ids=eos or read.token_ids("eos_token_id", vocab_size),
    )


def _head_dim(read: _Reader, hidden_size: int, num_heads: int) -> int:
    head_dim = read.integer("head_dim", 2, 1024, default=max(2, hidden_size // num_heads))
    if head_dim % 2:
        raise read.fault(f"head_dim = {head_dim} is odd: rotary embedding needs pairs")
    return head_dim


def _rope_theta(read: _Reader) -> float:
    """Newer files keep theta inside rope_parameters."""
    parameters = read.mapping("rope_parameters")
    if "rope_theta" in parameters:
        return _Reader(parameters, "rope_parameters").number("rope_theta", 10000.0)
    return read.number("rope_theta", 10000.0)


def _rope_scaling(read: _Reader, where: str) -> RopeScaling:
    values = read.mapping("rope_scaling") or read.mapping("rope_parameters")
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return RopeScaling()
    scaling = _Reader(values, f"{where}: rope_scaling")
    if kind not in ("linear", "llama3"):
        raise scaling.fault(f"rope_type = {kind!r} is not supported (default, linear, llama3)")
    return RopeScaling(
        kind=str(kind),
        factor=scaling.number("factor", 1.0),
        low_freq_factor=scaling.number("low_freq_factor", 1.0),
        high_freq_factor=scaling.number("high_freq_factor", 4.0),
        original_max_position=scaling.integer(
            "original_max_position_embeddings", 1, 2**24, default=8192
        ),
    )
