"""The Llama-family forward pass over a paged KV cache.

Owns: the order of operations and the packed weights. Never knows: requests, block tables' owners,
sampling. Weights are taken from the files one tensor at a time and packed at once, so that one
copy remains; a tied LM head shares the embedding's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from core.kernels.linear import Gated, Normed, Residual
from core.kernels.paged_attention import AttentionBatch, AttentionShape
from core.kernels.selection import Kernels
from core.kernels.vocabulary import Vocabulary
from core.models.llama_config import LlamaConfig
from core.models.rope import rope_table
from core.models.weights import WeightFiles

LM_HEAD_NAME = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; norms float32 [hidden], the rest packed."""

    input_norm: Tensor
    qkv: Normed
    out: Residual
    post_norm: Tensor
    gate_up: Gated
    down: Residual

    @property
    def num_bytes(self) -> int:
        """Memory of the layer, bytes."""
        products = self.qkv.num_bytes + self.out.num_bytes
        products += self.gate_up.num_bytes + self.down.num_bytes
        return products + self.input_norm.nbytes + self.post_norm.nbytes


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All weights of a model; `head` is `embedding` itself when tied."""

    embedding: Vocabulary
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Vocabulary

    @property
    def num_bytes(self) -> int:
        """Memory of all weights, bytes."""
        head = 0 if self.head is self.embedding else self.head.num_bytes
        layers = sum(layer.num_bytes for layer in self.layers)
        return self.embedding.num_bytes + layers + self.norm.nbytes + head


def load_weights(directory: Path, config: LlamaConfig, kernels: Kernels) -> LlamaWeights:
    """Read, check and pack the weights in `directory`; raises ModelError."""
    with WeightFiles(directory) as files:
        embedding_shape = (config.vocab_size, config.hidden_size)
        embedding = kernels.vocabulary(
            files.take("model.embed_tokens.weight", embedding_shape, kernels.dtype)
        )
        layers = tuple(
            _load_layer(files, f"model.layers.{index}", config, kernels)
            for index in range(config.num_layers)
        )
        norm = files.take("model.norm.weight", (config.hidden_size,), torch.float32)
        head = embedding
        if not config.tie_word_embeddings:
            head = kernels.vocabulary(files.take(LM_HEAD_NAME, embedding_shape, kernels.dtype))
        files.finish(ignored=(LM_HEAD_NAME,) if config.tie_word_embeddings else ())
    return LlamaWeights(embedding, layers, norm, head)


def _load_layer(
    files: WeightFiles, prefix: str, config: LlamaConfig, kernels: Kernels
) -> LayerWeights:
    hidden, inner = config.hidden_size, config.intermediate_size

    def norm(name: str) -> Tensor:
        return files.take(f"{prefix}.{name}.weight", (hidden,), torch.float32)

    def matrix(name: str, out_size: int, in_size: int) -> Tensor:
        return files.take(f"{prefix}.{name}.weight", (out_size, in_size), kernels.dtype)

    qkv = torch.cat(
        (
            matrix("self_attn.q_proj", config.q_size, hidden),
            matrix("self_attn.k_proj", config.kv_size, hidden),
            matrix("self_attn.v_proj", config.kv_size, hidden),
        )
    )
    return LayerWeights(
        input_norm=norm("input_layernorm"),
        qkv=kernels.normed(qkv),
        out=kernels.residual(matrix("self_attn.o_proj", hidden, config.q_size)),
        post_norm=norm("post_attention_layernorm"),
        gate_up=kernels.gated(
            matrix("mlp.gate_proj", inner, hidden), matrix("mlp.up_proj", inner, hidden)
        ),
        down=kernels.residual(matrix("mlp.down_proj", hidden, inner)),
    )


class LlamaModel:
    """A loaded model; not thread-safe."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: LlamaWeights,
        kernels: Kernels,
        *,
        block_size: int,
        num_positions: int,
    ) -> None:
        """`num_positions` is the longest sequence that will be computed, tokens."""
        self.config = config
        self.attention_shape = AttentionShape(
            config.num_heads, config.num_kv_heads, config.head_dim, block_size
        )
        self.weights = weights
        self.num_positions = num_positions
        self._attention = kernels.attention(self.attention_shape, rope_table(config, num_positions))

    def forward(self, token_ids: Tensor, batch: AttentionBatch, caches: Sequence[Tensor]) -> Tensor:
        """Compute the step's tokens, extending the layers' `caches`.

        token_ids int32 [tokens], all inside the vocabulary. Returns the residual stream
        [tokens, hidden] in the model's dtype, before the final norm.
        """
        epsilon = self.config.rms_norm_eps
        self._attention.begin(batch)
        x = self.weights.embedding.embed(token_ids)
        for layer, cache in zip(self.weights.layers, caches, strict=True):
            qkv = layer.qkv(x, layer.input_norm, epsilon)
            x = layer.out(self._attention(qkv, cache), x)
            x = layer.down(layer.gate_up(x, layer.post_norm, epsilon), x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [rows, vocabulary] for rows [rows, hidden] of `forward`'s result."""
        return self.weights.head.logits(hidden, self.weights.norm, self.config.rms_norm_eps)
