"""The weights of a decoder: read by the names of its family, checked, and packed one at a time.

Owns: how tensors of the files become the products of a layer, or the part of them that a rank has
(`sharding`). Never knows: the order in which a forward pass uses them. Each product is packed as
soon as it is read, so that one copy remains; a tied LM head shares the embedding's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from core.kernels.kernel_set import KernelSet
from core.kernels.linear import Gated, Normed, Residual
from core.kernels.norm import HeadNorms, NormedHeads, NormedResidual
from core.kernels.rounding import like_sized_order
from core.kernels.vocabulary import Vocabulary
from core.models.decoder_config import DecoderConfig
from core.models.rope import rotary_order
from core.models.sharding import DecoderShard, divide_decoder
from core.models.weights import TensorSource, WeightFiles
from core.parallel.products import DividedVocabulary, SummedResidual
from core.parallel.ranks import ALONE, Ranks


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; norms float32 [hidden], None where the products take their input as it is."""

    input_norm: Tensor | None
    qkv: Normed
    out: Residual
    mlp_norm: Tensor | None
    gate_up: Gated
    down: Residual

    @property
    def num_bytes(self) -> int:
        """Memory of the layer, bytes."""
        products = (self.qkv, self.out, self.gate_up, self.down)
        norms = (norm for norm in (self.input_norm, self.mlp_norm) if norm is not None)
        return sum(p.num_bytes for p in products) + sum(norm.nbytes for norm in norms)


@dataclass(frozen=True, slots=True)
class DecoderWeights:
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


def load_weights(
    directory: Path, config: DecoderConfig, kernels: KernelSet, ranks: Ranks = ALONE
) -> DecoderWeights:
    """Read, check and pack the weights in `directory`, or this rank's part; raises ModelError.

    `config` is that of the whole model.
    """
    with WeightFiles(directory) as files:
        weights = pack_weights(files, config, kernels, ranks)
        is_tied = weights.head is weights.embedding
        files.finish(config.family, (f"{config.weight_names.head}.weight",) if is_tied else ())
    return weights


def pack_weights(
    source: TensorSource, config: DecoderConfig, kernels: KernelSet, ranks: Ranks = ALONE
) -> DecoderWeights:
    """Return the weights that `source` has, packed; raises what it raises."""
    names = config.weight_names
    shard = divide_decoder(config, ranks.size)[ranks.rank]
    embedding = _vocabulary(source, names.embedding, config, kernels, shard, ranks)
    layers = tuple(
        _LayerReader(source, index, config, kernels, shard, ranks).read()
        for index in range(config.num_layers)
    )
    norm = _norm(source, names.norm, config.hidden_size, config, kernels)
    head = embedding
    if not config.tie_word_embeddings:
        head = _vocabulary(source, names.head, config, kernels, shard, ranks)
    return DecoderWeights(embedding, layers, norm, head)


def _vocabulary(
    source: TensorSource,
    name: str,
    config: DecoderConfig,
    kernels: KernelSet,
    shard: DecoderShard,
    ranks: Ranks,
) -> Vocabulary:
    shape = (config.vocab_size, config.hidden_size)
    weight = source.take(f"{name}.weight", shape, kernels.dtype)
    if ranks.size == 1:
        return kernels.vocabulary(weight)
    own, width = weight[shard.tokens], shard.vocabulary_width
    padded = torch.nn.functional.pad(own, (0, 0, 0, width - len(own)))
    return DividedVocabulary(
        kernels.vocabulary(padded), shard.tokens.start, width, config.vocab_size, ranks
    )


def _norm(
    source: TensorSource, name: str, size: int, config: DecoderConfig, kernels: KernelSet
) -> Tensor:
    norm = kernels.place(source.take(f"{name}.weight", (size,), torch.float32))
    return norm + 1.0 if config.features.norms_add_one else norm


class _LayerReader:
    """Reads one layer, and keeps what `shard` has of it."""

    def __init__(
        self,
        source: TensorSource,
        index: int,
        config: DecoderConfig,
        kernels: KernelSet,
        shard: DecoderShard,
        ranks: Ranks,
    ) -> None:
        self._source = source
        self._prefix = config.weight_names.layer.format(index)
        self._config = config
        self._kernels = kernels
        self._shard = shard
        self._ranks = ranks

    def read(self) -> LayerWeights:
        config, names, features = self._config, self._config.weight_names, self._config.features
        hidden, inner, shard = config.hidden_size, config.intermediate_size, self._shard
        gate, up = self._parts(names.gate_up, (inner, inner), hidden)
        mlp_norm = self._norm_if(names.mlp_norm, hidden)
        columns: slice | Tensor = shard.columns
        if self._kernels.rounds_inputs:
            order = like_sized_order(gate[columns], up[columns], mlp_norm)
            columns = torch.arange(inner)[columns][order]
        return LayerWeights(
            input_norm=self._norm_if(names.input_norm, hidden),
            qkv=self._qkv(),
            out=self._residual(
                names.out,
                config.q_size,
                shard.query_rows,
                names.attention_post_norm,
                has_bias=features.out_bias,
            ),
            mlp_norm=mlp_norm,
            gate_up=self._kernels.gated(gate[columns], up[columns], features.activation),
            down=self._residual(names.down, inner, columns, names.mlp_post_norm, has_bias=False),
        )

    def _qkv(self) -> Normed:
        """Return the product of queries, keys and values, their norms included if there are any."""
        config, names = self._config, self._config.weight_names
        sizes = (config.q_size, config.kv_size, config.kv_size)
        weight = self._own_heads(torch.cat(self._parts(names.qkv, sizes, config.hidden_size)))
        bias = self._own_heads(self._bias(names.qkv, sizes)) if config.features.qkv_bias else None
        product = self._kernels.normed(
            self._with_pairs_apart(weight), None if bias is None else self._with_pairs_apart(bias)
        )
        norms = self._head_norms()
        if norms is None:
            return product
        return NormedHeads(product, self._kernels.head_norms(norms), norms)

    def _head_norms(self) -> HeadNorms | None:
        config, names = self._config, self._config.weight_names
        if names.query_norm is None or names.key_norm is None:
            return None
        own = self._shard.config
        pieces, sizes = (own.num_heads, own.num_kv_heads), (own.head_dim, own.head_dim)
        if config.features.norms_whole_query:
            pieces, sizes = (1, 1), (config.q_size, config.kv_size)
        query, key = (
            self._head_order(self._norm(name, size))
            for name, size in zip((names.query_norm, names.key_norm), sizes, strict=True)
        )
        return HeadNorms(query, key, *pieces, config.rms_norm_eps)

    def _residual(
        self, name: str, in_size: int, own: slice | Tensor, post_norm: str | None, has_bias: bool
    ) -> Residual:
        """Return the product of a weight [hidden, in_size] of which this rank has inputs `own`."""
        kernels, size = self._kernels, self._config.hidden_size
        (whole,) = self._parts((name,), (size,), in_size)
        weight = whole[:, own].contiguous()
        bias = self._bias((name,), (size,)) if has_bias else None
        norm = self._norm_if(post_norm, size)
        norm_add = None if norm is None else kernels.norm_add(norm, self._config.rms_norm_eps)
        if self._ranks.size > 1:
            partial = kernels.partial(weight)
            placed = None if bias is None else kernels.place(bias)
            return SummedResidual(partial, self._ranks, placed, norm_add)
        if norm_add is None:
            return kernels.residual(weight, bias)
        return NormedResidual(kernels.normed(weight, bias), norm_add)

    def _norm(self, name: str, size: int) -> Tensor:
        return _norm(self._source, self._prefix + name, size, self._config, self._kernels)

    def _norm_if(self, name: str | None, size: int) -> Tensor | None:
        return None if name is None else self._norm(name, size)

    def _parts(
        self, names: Sequence[str], sizes: Sequence[int], in_size: int
    ) -> tuple[Tensor, ...]:
        """Return a weight [size, in_size] for each of `sizes`; a single name holds them all."""
        dtype = self._kernels.dtype
        if len(names) == 1:
            shape = (sum(sizes), in_size)
            whole = self._source.take(f"{self._prefix}{names[0]}.weight", shape, dtype)
            return torch.split(whole, list(sizes))
        return tuple(
            self._source.take(f"{self._prefix}{name}.weight", (size, in_size), dtype)
            for name, size in zip(names, sizes, strict=True)
        )

    def _bias(self, names: Sequence[str], sizes: Sequence[int]) -> Tensor:
        """Return the biases of all `sizes`, float32, one below the other."""
        if len(names) == 1:
            sizes = (sum(sizes),)
        return torch.cat(
            [
                self._source.take(f"{self._prefix}{name}.bias", (size,), torch.float32)
                for name, size in zip(names, sizes, strict=True)
            ]
        )

    def _own_heads(self, rows: Tensor) -> Tensor:
        """Return what this rank has of the rows of all queries, keys and values."""
        config, shard = self._config, self._shard
        query, key, value = torch.split(rows, [config.q_size, config.kv_size, config.kv_size])
        return torch.cat((query[shard.query_rows], key[shard.kv_rows], value[shard.kv_rows]))

    def _with_pairs_apart(self, rows: Tensor) -> Tensor:
        """Return rows of qkv with queries and keys in the order that `rope_table` turns."""
        if self._config.rope.rotary_dim == self._config.head_dim:
            return rows
        turning = self._shard.config.q_size + self._shard.config.kv_size
        return torch.cat((self._head_order(rows[:turning]), rows[turning:]))

    def _head_order(self, rows: Tensor) -> Tensor:
        """Return rows [heads * head_dim, …] with each head's dimensions in that order."""
        size = self._config.head_dim
        order = rotary_order(size, self._config.rope.rotary_dim)
        return rows.view(-1, size, *rows.shape[1:])[:, order].flatten(0, 1)
