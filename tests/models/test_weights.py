"""Reading and checking safetensors files."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.errors import ModelError
from core.kernels.selection import Kernels
from core.models.decoder_weights import DecoderWeights, load_weights
from core.models.model_config import read_model_config
from tests.support.kernels.native_kernels import native_library
from tests.support.models.tiny_model import write_tiny_model

FILE = "model.safetensors"
NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A tiny model."""
    return write_tiny_model(tmp_path)


def load(directory: Path) -> DecoderWeights:
    """Load with the plain-torch kernels."""
    return load_weights(directory, read_model_config(directory), Kernels(None, torch.float32))


def change(directory: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Replace or remove a tensor of the file."""
    tensors = load_file(directory / FILE)
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, directory / FILE)


def shard(directory: Path) -> dict[str, str]:
    """Split the file into two with an index; return its weight map."""
    tensors = load_file(directory / FILE)
    names = sorted(tensors)
    weight_map = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
    for part in ("part-0.safetensors", "part-1.safetensors"):
        save_file({n: tensors[n] for n in names if weight_map[n] == part}, directory / part)
    (directory / FILE).unlink()
    write_index(directory, weight_map)
    return weight_map


def write_index(directory: Path, weight_map: object) -> None:
    """Write the index file."""
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": weight_map}))


def test_all_tensors_are_counted_once(directory: Path) -> None:
    """The bytes of the weights are those of the file's tensors: one copy, the tied head shared."""
    expected = sum(tensor.nbytes for tensor in load_file(directory / FILE).values())
    assert load(directory).num_bytes == expected


def test_packing_keeps_one_copy(directory: Path) -> None:
    """Packed bfloat16 weights take half the file's bytes plus the padding to whole panels."""
    kernels = Kernels(native_library(), torch.bfloat16)
    packed = load_weights(directory, read_model_config(directory), kernels).num_bytes
    file_bytes = sum(tensor.nbytes for tensor in load_file(directory / FILE).values())
    assert file_bytes / 2 <= packed < file_bytes / 2 * 1.1


def test_an_untied_head_is_its_own_matrix(tmp_path: Path) -> None:
    """Without tied embeddings lm_head.weight is read and counted."""
    weights = load(write_tiny_model(tmp_path, tie_embeddings=False))
    assert weights.head is not weights.embedding


def test_shards_are_joined_by_the_index(directory: Path) -> None:
    """A model in several files with an index is the same model."""
    whole = load(directory).num_bytes
    shard(directory)
    assert load(directory).num_bytes == whole


def test_a_missing_tensor_is_named(directory: Path) -> None:
    """The error names the file and the tensor that is not there."""
    change(directory, NORM, None)
    with pytest.raises(ModelError, match=f"{FILE}: tensor {NORM} is missing"):
        load(directory)


def test_an_extra_tensor_is_named(directory: Path) -> None:
    """A tensor that no Llama has means that this is another architecture."""
    change(directory, "model.layers.0.self_attn.q_proj.bias", torch.ones(64))
    with pytest.raises(ModelError, match=rf"{FILE}: tensor \S*q_proj\.bias is not part"):
        load(directory)


def test_a_copy_of_the_tied_head_is_ignored(directory: Path) -> None:
    """Files that store the tied head twice are fine, and so are old rotary tables."""
    plain = load(directory).num_bytes
    change(directory, "lm_head.weight", torch.ones(300, 64))
    change(directory, "model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8))
    weights = load(directory)
    assert weights.head is weights.embedding
    assert weights.num_bytes == plain


def test_a_wrong_shape_is_named(directory: Path) -> None:
    """The error names file and tensor and tells both shapes."""
    change(directory, NORM, torch.ones(63))
    with pytest.raises(ModelError, match=rf"{FILE}: tensor {NORM} .*\(63,\).*\(64,\)"):
        load(directory)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_named(directory: Path, value: float) -> None:
    """NaN or infinity in a weight is a corrupt model."""
    tensor = torch.ones(64)
    tensor[7] = value
    change(directory, NORM, tensor)
    with pytest.raises(ModelError, match=f"{FILE}: tensor {NORM} holds NaN or infinity"):
        load(directory)


def test_an_integer_tensor_is_named(directory: Path) -> None:
    """Quantized or integer weights are not supported."""
    change(directory, NORM, torch.ones(64, dtype=torch.int8))
    with pytest.raises(ModelError, match=f"{FILE}: tensor {NORM} .*int8"):
        load(directory)


def test_an_fp8_tensor_is_named(directory: Path) -> None:
    """FP8 numbers without their scales mean nothing; the error says what is taken instead."""
    change(directory, NORM, torch.ones(64).to(torch.float8_e4m3fn))
    with pytest.raises(ModelError, match=f"{FILE}: tensor {NORM} .*float8.*bfloat16"):
        load(directory)


@pytest.mark.parametrize("suffix", ["qweight", "qzeros", "weight_scale", "weight_scale_inv"])
def test_tensors_of_quantized_checkpoints_are_named(directory: Path, suffix: str) -> None:
    """GPTQ, AWQ and FP8 files are known by their tensors, if config.json does not say it."""
    name = f"model.layers.0.self_attn.q_proj.{suffix}"
    change(directory, name, torch.ones(4, dtype=torch.int32))
    with pytest.raises(ModelError, match=rf"{FILE}: tensor {name} .*quantized"):
        load(directory)


@pytest.mark.parametrize("size", [0, 7, 100, 5000])
def test_a_truncated_file_is_named(directory: Path, size: int) -> None:
    """A file cut anywhere is refused before any tensor is used."""
    path = directory / FILE
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelError, match=FILE):
        load(directory)


def test_a_header_that_lies_is_refused(directory: Path) -> None:
    """Offsets beyond the file's end are refused."""
    path = directory / FILE
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=FILE):
        load(directory)


def test_a_missing_file_is_named(directory: Path) -> None:
    """A directory without weights says which file it misses."""
    (directory / FILE).unlink()
    with pytest.raises(ModelError, match=f"no {FILE}"):
        load(directory)


def test_a_missing_shard_is_named(directory: Path) -> None:
    """The index names a file that is not there."""
    shard(directory)
    (directory / "part-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"part-1\.safetensors is missing"):
        load(directory)


def test_an_index_cannot_leave_the_directory(directory: Path) -> None:
    """A shard's name is a plain file name."""
    weight_map = shard(directory)
    write_index(directory, {**weight_map, NORM: "../part-1.safetensors"})
    with pytest.raises(ModelError, match="outside its directory"):
        load(directory)


@pytest.mark.parametrize("weight_map", [None, {}, [1]])
def test_an_empty_index_is_refused(directory: Path, weight_map: object) -> None:
    """An index without a weight map names no model."""
    (directory / FILE).unlink()
    write_index(directory, weight_map)
    with pytest.raises(ModelError, match="weight_map"):
        load(directory)


def test_an_index_that_names_an_absent_tensor_is_refused(directory: Path) -> None:
    """What the index promises must be in the file it names."""
    weight_map = shard(directory)
    write_index(directory, {**weight_map, "model.ghost": "part-0.safetensors"})
    with pytest.raises(ModelError, match=r"model\.ghost"):
        load(directory)
