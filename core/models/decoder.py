"""The forward pass of every model family over a paged KV cache.

Owns: the order of operations. Never knows: requests, block tables' owners, sampling, or families:
what a model has more or less than plain Llama is in the products of its layers
(`core.models.decoder_weights`) and in one attention for each kind of layer, all made beforehand.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from core.kernels.kernel_set import KernelSet
from core.kernels.paged_attention import (
    AttentionBatch,
    AttentionRule,
    AttentionShape,
    PagedAttention,
)
from core.models.decoder_config import DecoderConfig
from core.models.decoder_weights import DecoderWeights
from core.models.rope import rope_table


class Decoder:
    """A loaded model; not thread-safe."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        kernels: KernelSet,
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
        self._attentions = self._make_attentions(kernels)
        self._layer_attentions = tuple(
            self._attentions[config.window(layer)] for layer in range(config.num_layers)
        )
        self._embedding_scale = embedding_scale(config, kernels.dtype)

    def forward(self, token_ids: Tensor, batch: AttentionBatch, caches: Sequence[Tensor]) -> Tensor:
        """Compute the step's tokens, extending the layers' `caches`.

        token_ids int32 [tokens], all inside the vocabulary. Returns the residual stream
        [tokens, hidden] in the model's dtype, before the final norm.
        """
        for attention in self.attentions:
            attention.begin(batch)
        return self.layers(token_ids, caches)

    def layers(self, token_ids: Tensor, caches: Sequence[Tensor]) -> Tensor:
        """Compute the tokens of the step that all `attentions` have begun; as `forward`."""
        epsilon = self.config.rms_norm_eps
        x = self.weights.embedding.embed(token_ids)
        if self._embedding_scale != 1.0:
            x *= self._embedding_scale
        self._expect(0, caches)
        for index, (layer, attention, cache) in enumerate(
            zip(self.weights.layers, self._layer_attentions, caches, strict=True)
        ):
            attended = attention(layer.qkv(x, layer.input_norm, epsilon), cache)
            self._expect(index + 1, caches)
            x = layer.out(attended, x)
            x = layer.down(layer.gate_up(x, layer.mlp_norm, epsilon), x)
        return x

    def _expect(self, layer: int, caches: Sequence[Tensor]) -> None:
        """Say which cache is read next, if there is one: products fetch it while they compute."""
        if layer < len(caches):
            self._layer_attentions[layer].expect(caches[layer])

    @property
    def attentions(self) -> tuple[PagedAttention, ...]:
        """One attention for each window that a layer has."""
        return tuple(self._attentions.values())

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [rows, vocabulary] for rows [rows, hidden] of `forward`'s result."""
        weights, softcap = self.weights, self.config.features.logits_softcap
        logits = weights.head.logits(hidden, weights.norm, self.config.rms_norm_eps)
        return logits.div_(softcap).tanh_().mul_(softcap) if softcap else logits

    def _make_attentions(self, kernels: KernelSet) -> dict[int, PagedAttention]:
        """Return an attention for each window that a layer has."""
        config, features = self.config, self.config.features
        attentions = {}
        for window in sorted({config.window(layer) for layer in range(config.num_layers)}):
            rope = config.local_rope if window and config.local_rope else config.rope
            attentions[window] = kernels.attention(
                self.attention_shape,
                rope_table(rope, config.head_dim, self.num_positions),
                AttentionRule(features.attention_scale, features.attention_softcap, window),
            )
        return attentions


def embedding_scale(config: DecoderConfig, dtype: torch.dtype) -> float:
    """Return what embeddings are multiplied with, rounded to `dtype` as in training."""
    if not config.features.scales_embedding:
        return 1.0
    return float(torch.tensor(config.hidden_size**0.5).to(dtype))
