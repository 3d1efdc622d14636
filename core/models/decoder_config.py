"""What the one decoder must know of a model: shapes, features, names of tensors.

Owns: `DecoderConfig` and its parts, as plain data. Never knows: files, or which family has what
(`core.models.families`); it loads no tensor library.
"""

from dataclasses import dataclass

from core.models.rope_config import RopeConfig

QUERY_KEY_VALUE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Where a model's weights are in its files; None: it has no such weight.

    Names inside a layer follow `layer`. Several names are joined row by row, one name holds all.
    """

    embedding: str = "model.embed_tokens"
    head: str = "lm_head"
    norm: str = "model.norm"
    layer: str = "model.layers.{}."
    input_norm: str | None = "input_layernorm"
    qkv: tuple[str, ...] = QUERY_KEY_VALUE
    query_norm: str | None = None
    key_norm: str | None = None
    out: str = "self_attn.o_proj"
    attention_post_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    mlp_post_norm: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """How a decoder differs from plain Llama. Resolved when it is built, not while it runs."""

    activation: str = "silu"  # or gelu, its tanh form
    norms_add_one: bool = False  # a stored norm w means 1 + w
    norms_whole_query: bool = False  # query and key norms go over all heads as one vector
    qkv_bias: bool = False
    out_bias: bool = False
    scales_embedding: bool = False  # by sqrt(hidden_size)
    attention_scale: float | None = None  # None: 1/sqrt(head_dim)
    attention_softcap: float = 0.0  # 0: none
    logits_softcap: float = 0.0
    windows: tuple[int, ...] = ()  # keys a token of each layer sees, 0: all; empty: all layers all


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Shapes and constants of the model."""

    family: str
    weight_names: WeightNames
    features: Features
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None = None  # of layers with a window, if another one
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()  # any of them ends a sequence

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads."""
        return self.num_kv_heads * self.head_dim

    def window(self, layer: int) -> int:
        """Return how many keys a token of the layer sees, its own included; 0: all."""
        return self.features.windows[layer] if self.features.windows else 0
