"""A GGUF file becomes a Hugging Face directory with the same model in it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from core.errors import ModelError
from core.models.convert import convert, hugging_face_name, main, split_rotary_pairs, to_bfloat16
from core.models.registry import read_facts
from tests.support.models.tiny_gguf import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    TOKENS,
    interleaved,
    tiny_weights,
    write_tiny_gguf,
)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the tiny model."""
    place = tmp_path_factory.mktemp("convert")
    convert(write_tiny_gguf(place / "tiny.gguf"), place / "made", lambda done, total: None)
    return place / "made"


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object."""
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def read_tensors(path: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the bfloat16 tensors of a safetensors file, widened, read by its format alone."""
    data = path.read_bytes()
    header_size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_size])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + header_size + offset for offset in entry["data_offsets"])
            bits = np.frombuffer(data[start:end], np.uint16).astype(np.uint32) << 16
            tensors[name] = bits.view(np.float32).reshape(entry["shape"])
    return tensors


def test_weights_are_rounded_and_in_order(converted: Path) -> None:
    """Every tensor has its name, shape and values, q and k rows in half-split order."""
    tensors = read_tensors(converted / "model.safetensors")
    expected = {hugging_face_name(name): values for name, values in tiny_weights().items()}
    assert tensors.keys() == expected.keys()
    for name, values in expected.items():
        assert tensors[name].shape == values.shape
        np.testing.assert_allclose(tensors[name], values, rtol=2**-8)


def test_config_states_the_model(converted: Path) -> None:
    """config.json has the sizes and constants of the file, in full precision."""
    config = read_json(converted / "config.json")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 100000.0
    assert config["tie_word_embeddings"] is True
    assert config["num_attention_heads"] == HEADS
    assert config["num_key_value_heads"] == KV_HEADS
    assert config["head_dim"] == HEAD_DIM
    facts = read_facts("tiny", converted)
    assert (facts.vocab_size, facts.max_model_len) == (len(TOKENS), 128)
    assert facts.eos_token_ids == (2, 0)


def test_tokenizer_is_the_files(converted: Path) -> None:
    """Digits stand apart, merges work, control tokens are special, no BOS is added."""
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.encode("he12<|im_end|>").tokens == ["he", "1", "2", "<|im_end|>"]
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
    assert specials == TOKENS[:3]
    config = read_json(converted / "tokenizer_config.json")
    assert config["chat_template"] == "{{ messages[0].content }}<|im_end|>"
    assert config["eos_token"] == "<|im_end|>"


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**31))
def test_splitting_undoes_interleaving(heads: int, half: int, seed: int) -> None:
    """Rows interleaved per head come back to their order for any number and size of heads."""
    rows = np.random.default_rng(seed).standard_normal((heads * 2 * half, 3)).astype(np.float32)
    assert (split_rotary_pairs(interleaved(rows, heads), heads) == rows).all()


def test_bfloat16_rounds_ties_to_even() -> None:
    """Half-way values go to the even neighbour, others to the nearest."""
    tie_down, tie_up, above = 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20
    bits = to_bfloat16(np.array([1.0, tie_down, tie_up, above, -0.0], np.float32))
    assert bits.tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x8000]


def test_weights_that_are_not_finite_are_refused() -> None:
    """NaN and infinity are not a model."""
    with pytest.raises(ModelError, match="finite"):
        to_bfloat16(np.array([np.nan], np.float32))


@pytest.mark.parametrize("changes", [{"architecture": "gpt2"}, {"pre": "qwen2"}])
def test_other_models_are_refused(tmp_path: Path, changes: dict[str, str]) -> None:
    """A file of another architecture or pre-tokenizer is refused by name."""
    gguf = write_tiny_gguf(tmp_path / "other.gguf", **changes)
    with pytest.raises(ModelError, match=r"gpt2|qwen2"):
        convert(gguf, tmp_path / "made", lambda done, total: None)


def test_a_file_that_is_no_gguf_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says what is wrong with its file and returns 1."""
    (tmp_path / "noise.gguf").write_bytes(b"nothing of the kind" * 100)
    assert main(["convert", str(tmp_path / "noise.gguf"), str(tmp_path / "made")]) == 1
    message = capsys.readouterr().err
    assert "noise.gguf" in message
    assert message.count("\n") == 1


def test_an_unknown_tensor_is_refused() -> None:
    """A tensor that the engine would not load is not dropped silently."""
    with pytest.raises(ModelError, match="rope_freqs"):
        hugging_face_name("rope_freqs.weight")
