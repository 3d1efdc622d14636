"""How a decoder is divided among ranks, and that the parts together are the whole, family by
family.
"""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from core.errors import ModelError
from core.kernels.paged_attention import AttentionBatch
from core.kernels.selection import Kernels
from core.models.decoder import Decoder
from core.models.decoder_config import DecoderConfig
from core.models.decoder_weights import load_weights
from core.models.model_config import read_model_config
from core.models.sharding import DecoderShard, divide_decoder
from core.parallel.ranks import ALONE, Ranks
from core.parallel.socket_ranks import SocketRanks
from tests.support.executor.rank_group import on_all
from tests.support.kernels.native_kernels import native_library
from tests.support.models.tiny_model import write_tiny_model
from tests.support.models.transformers_models import CASES, write_model

CLOSE = 1e-4
NUM_TOKENS = 30
BLOCK_SIZE = 8
DIVISIBLE = sorted(CASES.keys() - {"olmo2"})


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> DecoderConfig:
    """The shape of a tiny model."""
    return read_model_config(write_tiny_model(tmp_path_factory.mktemp("tiny")))


def smollm2_like(config: DecoderConfig) -> DecoderConfig:
    """The widths of the default model."""
    return replace(
        config,
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
    )


def lengths(parts: list[slice]) -> list[int]:
    """How much each has; they are neighbours from 0 on."""
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    return [part.stop - part.start for part in parts]


def weight_of(shard: DecoderShard) -> int:
    """A rank's weights of a layer, in rows of the hidden size."""
    config = shard.config
    return 2 * (config.q_size + config.kv_size) + 3 * config.intermediate_size


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_parts_are_the_whole(small: DecoderConfig, size: int) -> None:
    """Every KV head, query, column and token is on one rank, and no rank has much more to do."""
    config = smollm2_like(small)
    shards = divide_decoder(config, size)
    assert sum(lengths([shard.kv_heads for shard in shards])) == config.num_kv_heads
    assert sum(lengths([shard.query_rows for shard in shards])) == config.q_size
    assert sum(lengths([shard.kv_rows for shard in shards])) == config.kv_size
    columns = lengths([shard.columns for shard in shards])
    assert columns == [shard.config.intermediate_size for shard in shards]
    assert sum(columns) == config.intermediate_size
    assert sum(lengths([shard.tokens for shard in shards])) == config.vocab_size
    weights = [weight_of(shard) for shard in shards]
    assert max(weights) < 1.05 * min(weights)


def test_one_rank_has_the_model_as_it_is(small: DecoderConfig) -> None:
    """Nothing is another number than in an engine that knows no ranks."""
    assert [shard.config for shard in divide_decoder(small, 1)] == [small]


def test_heads_that_do_not_go_round_are_made_up_for_by_columns(small: DecoderConfig) -> None:
    """The rank with two of three KV heads has the narrower MLP."""
    first, second = divide_decoder(smollm2_like(small), 2)
    assert (first.config.num_heads, second.config.num_heads) == (6, 3)
    assert (first.config.num_kv_heads, second.config.num_kv_heads) == (2, 1)
    assert first.config.intermediate_size < second.config.intermediate_size


def test_what_cannot_be_divided_is_refused(small: DecoderConfig) -> None:
    """Too many ranks for the heads or the MLP, and norms over all heads, are ModelErrors."""
    with pytest.raises(ModelError, match="2 KV heads"):
        divide_decoder(small, 3)
    with pytest.raises(ModelError, match="MLP of 16 columns"):
        divide_decoder(replace(small, intermediate_size=16), 2)
    whole = replace(small, features=replace(small.features, norms_whole_query=True))
    with pytest.raises(ModelError, match="tensor_parallel = 1"):
        divide_decoder(whole, 2)


def logits_of(directory: Path, ranks: Ranks, library: bool) -> Tensor:
    """One rank's logits of a prompt, as it computes them with the others."""
    kernels = Kernels(native_library() if library else None, torch.float32)
    whole = read_model_config(directory)
    with torch.inference_mode():
        weights = load_weights(directory, whole, kernels, ranks)
        config = divide_decoder(whole, ranks.size)[ranks.rank].config
        model = Decoder(config, weights, kernels, block_size=BLOCK_SIZE, num_positions=NUM_TOKENS)
        ranks.join()
        shape = model.attention_shape.cache_shape(4)
        caches = [torch.full(shape, math.nan) for _ in range(config.num_layers)]
        zero = np.zeros(1, dtype=np.int32)
        table = np.array([[2, 0, 3, 1]], dtype=np.int32)
        batch = AttentionBatch(zero, np.array([NUM_TOKENS], dtype=np.int32), zero, table)
        ids = torch.arange(2, 2 + NUM_TOKENS, dtype=torch.int32)
        return model.logits(model.forward(ids, batch, caches))


@pytest.mark.slow
@pytest.mark.parametrize("library", [True, False], ids=["cpp", "torch"])
@pytest.mark.parametrize("name", DIVISIBLE)
def test_two_ranks_compute_the_logits_of_one(name: str, library: bool, tmp_path: Path) -> None:
    """Whatever the family has: biases, norms of heads, norms behind products, fused weights."""
    directory = write_model(tmp_path / "model", CASES[name])
    expected = logits_of(directory, ALONE, library)
    pair = [SocketRanks(tmp_path / "ranks", rank, 2, join_s=30, exchange_s=10) for rank in (0, 1)]
    got = on_all([partial(logits_of, directory, ranks, library) for ranks in pair])
    assert torch.equal(got[0], got[1])
    assert float((got[0] - expected).abs().max()) < CLOSE
