"""Every model family against transformers, through the paged KV cache in chunks."""

import math
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from core.errors import ModelError
from core.kernels.paged_attention import AttentionBatch
from core.kernels.selection import Kernels
from core.models.decoder import Decoder
from core.models.decoder_config import DecoderConfig, Features
from core.models.decoder_weights import load_weights
from core.models.model_config import read_model_config
from core.models.weights import WeightFiles
from tests.support.kernels.native_kernels import native_library
from tests.support.models.transformers_models import (
    CASES,
    Case,
    change_config,
    reference_logits,
    write_model,
)

BLOCK_SIZE = 8
CLOSE = 1e-4
FAR = 1e-3
ROUNDING_SHARE = 0.05

Change = Callable[[DecoderConfig], DecoderConfig]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> "Models":
    """All models, written when first asked for."""
    return Models(tmp_path_factory.mktemp("families"))


class Models:
    """Directories of the cases, and transformers' logits of their tokens."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @cache  # noqa: B019 (lives as long as the module)
    def directory(self, name: str) -> Path:
        """The model of a case."""
        return write_model(self._root / name, CASES[name])

    @cache  # noqa: B019
    def expected(self, name: str) -> Tensor:
        """The reference of a case."""
        return reference_logits(self.directory(name), tokens_of(CASES[name]))


def tokens_of(case: Case) -> list[int]:
    """Random ids of the case's length."""
    random = np.random.default_rng(case.num_tokens)
    return [int(token_id) for token_id in random.integers(2, 301, case.num_tokens)]


def chunked_logits(
    directory: Path,
    token_ids: list[int],
    config: DecoderConfig,
    *,
    library: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the engine's float32 logits, computed in chunks and decodes over scattered blocks."""
    kernels = Kernels(native_library() if library else None, dtype)
    count = len(token_ids)
    with torch.inference_mode():
        weights = load_weights(directory, config, kernels)
        model = Decoder(config, weights, kernels, block_size=BLOCK_SIZE, num_positions=count)
        num_blocks = -(-count // BLOCK_SIZE)
        shape = model.attention_shape.cache_shape(num_blocks + 3)
        caches = [torch.full(shape, math.nan, dtype=dtype) for _ in range(config.num_layers)]
        table = np.random.default_rng(1).permutation(num_blocks + 3).astype(np.int32)
        hidden = []
        for start, end in chunks(count):
            batch = AttentionBatch(
                np.zeros(1, dtype=np.int32),
                np.array([end - start], dtype=np.int32),
                np.array([start], dtype=np.int32),
                table[None, :num_blocks].copy(),
            )
            ids = torch.tensor(token_ids[start:end], dtype=torch.int32)
            hidden.append(model.forward(ids, batch, caches))
        return model.logits(torch.cat(hidden))


def chunks(count: int) -> list[tuple[int, int]]:
    """A prompt in pieces of 13, its last 8 tokens as decodes."""
    borders = [*range(0, count - 8, 13), *range(count - 8, count + 1)]
    return list(pairwise(borders))


def furthest(one: Tensor, other: Tensor) -> float:
    """The largest difference of two logits."""
    return float((one - other).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("library", [True, False], ids=["cpp", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(models: Models, name: str, library: bool) -> None:
    """Prompts in pieces and decodes give the reference's logits, whatever the family has."""
    directory, token_ids = models.directory(name), tokens_of(CASES[name])
    config = read_model_config(directory)
    assert len(token_ids) <= config.max_position
    got = chunked_logits(directory, token_ids, config, library=library)
    assert furthest(got, models.expected(name)) < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_bfloat16_is_only_rounding_away(models: Models, name: str) -> None:
    """In bfloat16 logits differ from the reference's by some hundredths of their own spread."""
    directory, expected = models.directory(name), models.expected(name)
    config, token_ids = read_model_config(directory), tokens_of(CASES[name])
    got = chunked_logits(directory, token_ids, config, dtype=torch.bfloat16)
    difference = (got - expected).square().mean().sqrt()
    assert difference < ROUNDING_SHARE * expected.std()


def features(**values: object) -> Change:
    """A change of features."""
    return lambda config: replace(config, features=replace(config.features, **values))  # type: ignore[arg-type]


def rope(**values: object) -> Change:
    """A change of the rotary embedding."""
    return lambda config: replace(config, rope=replace(config.rope, **values))  # type: ignore[arg-type]


def narrower(config: DecoderConfig) -> DecoderConfig:
    """Every window one key shorter."""
    windows = tuple(window - 1 if window else 0 for window in config.features.windows)
    return replace(config, features=replace(config.features, windows=windows))


def shifted(config: DecoderConfig) -> DecoderConfig:
    """The windows of each layer at the next one."""
    windows = config.features.windows
    return replace(config, features=replace(config.features, windows=(windows[-1], *windows[:-1])))


def without_head_norms(config: DecoderConfig) -> DecoderConfig:
    """Norms of queries and keys that are in the files but not used."""
    names = replace(config.weight_names, query_norm=None, key_norm=None)
    return replace(config, weight_names=names)


def with_local_rope_everywhere(config: DecoderConfig) -> DecoderConfig:
    """The rotary embedding of local layers in all of them."""
    assert config.local_rope is not None
    return replace(config, rope=config.local_rope)


def swapped_post_norms(config: DecoderConfig) -> DecoderConfig:
    """The norm behind attention and the one behind the MLP, exchanged."""
    names = config.weight_names
    return replace(
        config,
        weight_names=replace(
            names,
            attention_post_norm=names.mlp_post_norm,
            mlp_post_norm=names.attention_post_norm,
        ),
    )


FAULTS: dict[str, tuple[str, Change]] = {
    "activation": ("gemma2", features(activation="silu")),
    "norms_add_one": ("gemma2", features(norms_add_one=False)),
    "scales_embedding": ("gemma3", features(scales_embedding=False)),
    "attention_scale": ("gemma2", features(attention_scale=None)),
    "attention_softcap": ("gemma2", features(attention_softcap=0.0)),
    "logits_softcap": ("gemma2", features(logits_softcap=0.0)),
    "post_norms": ("gemma2", swapped_post_norms),
    "alternating_windows": ("gemma2", shifted),
    "local_rope": ("gemma3", lambda config: replace(config, local_rope=None)),
    "rope_of_all_layers": ("gemma3", with_local_rope_everywhere),
    "window": ("mistral", narrower),
    "no_window": ("phi3", features(windows=())),
    "window_layers": ("qwen2-window", shifted),
    "qkv_bias": ("qwen2", features(qkv_bias=False)),
    "out_bias": ("llama-untied", features(out_bias=False)),
    "head_norms": ("qwen3", without_head_norms),
    "norms_of_whole_query": ("olmo2", without_head_norms),
    "post_norm": ("olmo2", swapped_post_norms),
    "norm_epsilon": ("olmo2", lambda config: replace(config, rms_norm_eps=0.1)),
    "tied_head": ("llama-untied", lambda config: replace(config, tie_word_embeddings=True)),
    "rope_theta": ("llama", rope(theta=20000.0)),
    "linear": ("linear-rope", rope(factor=1.0)),
    "dynamic": ("dynamic-rope", rope(kind="default")),
    "llama3": ("llama3-rope", rope(kind="default")),
    "llama3_blend": ("llama3-rope", rope(high_freq_factor=1.5)),
    "yarn": ("yarn-rope", rope(kind="linear")),
    "yarn_attention": ("yarn-rope", rope(attention_factor=1.0)),
    "longrope": ("phi3-longrope", rope(original_max_position=101)),
    "longrope_attention": ("phi3-shortrope", rope(attention_factor=1.0)),
    "partial_rotary": ("phi3-longrope", rope(rotary_dim=16, kind="default")),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_feature_that_is_wrong_shows(
    models: Models, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """With any one feature planted wrong the logits are far from the reference's."""
    name, change = FAULTS[fault]
    monkeypatch.setattr(WeightFiles, "finish", lambda *arguments: None)  # weights left unused
    directory, token_ids = models.directory(name), tokens_of(CASES[name])
    faulty = change(read_model_config(directory))
    assert furthest(chunked_logits(directory, token_ids, faulty), models.expected(name)) > FAR


def test_every_feature_has_a_planted_fault() -> None:
    """A feature that is added to the decoder needs a fault that a family notices."""
    planted = {"qkv_bias", "window", *FAULTS}
    assert {f.name for f in fields(Features)} - planted == {"norms_whole_query", "windows"}


SPOILT: dict[str, tuple[str, str, str]] = {
    "a bias that is missing": ("qwen2", "model.layers.1.self_attn.k_proj.bias", "is missing"),
    "a head norm that is missing": (
        "qwen3",
        "model.layers.0.self_attn.q_norm.weight",
        "is missing",
    ),
    "a post norm that is missing": (
        "gemma2",
        "model.layers.1.post_feedforward_layernorm.weight",
        "is missing",
    ),
    "joined weights of another shape": (
        "phi3",
        "model.layers.0.self_attn.qkv_proj.weight",
        r"has shape \(3, 5\)",
    ),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_spoilt_checkpoint_is_named(models: Models, tmp_path: Path, spoilt: str) -> None:
    """What a family has more than others is checked as well: one line names file and tensor."""
    name, tensor, complaint = SPOILT[spoilt]
    directory = shutil.copytree(models.directory(name), tmp_path / name)
    tensors = load_file(directory / "model.safetensors")
    del tensors[tensor]
    if "shape" in complaint:
        tensors[tensor] = torch.ones(3, 5)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelError, match=rf"model\.safetensors: tensor {tensor} {complaint}"):
        load_weights(directory, read_model_config(directory), Kernels(None, torch.float32))


def test_weights_of_another_family_are_named(models: Models, tmp_path: Path) -> None:
    """A config.json that calls Qwen3 a Llama does not make it one."""
    directory = shutil.copytree(models.directory("qwen3"), tmp_path / "qwen3")
    change_config(directory, model_type="llama")
    with pytest.raises(ModelError, match=r"_norm\.weight is not part of a Llama model"):
        load_weights(directory, read_model_config(directory), Kernels(None, torch.float32))


def test_shards_of_transformers_are_read(tmp_path: Path) -> None:
    """A model that transformers saved in several files is the same model."""
    whole = write_model(tmp_path / "whole", CASES["gemma2"])
    parts = write_model(tmp_path / "parts", CASES["gemma2"], shard_bytes=60_000)
    assert len(list(parts.glob("*.safetensors"))) > 2
    config, token_ids = read_model_config(whole), tokens_of(CASES["gemma2"])
    assert read_model_config(parts) == config
    one, other = (chunked_logits(path, token_ids, config) for path in (whole, parts))
    assert torch.equal(one, other)
