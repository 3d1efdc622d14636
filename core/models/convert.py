"""Turn a Llama-architecture GGUF file into a Hugging Face directory, once, after a pull.

Owns: the mapping of names, the order of rotary rows and the rounding of weights. Never knows: where
the file came from. Weights are dequantized to float32 and rounded to bfloat16 (ties to even); the
rows of q and k, which GGUF stores with the two halves of each rotary pair side by side, go back to
the half-split order of Hugging Face; an output head that GGUF omits is tied to the embedding.

    python -P -m core.models.convert FILE.gguf DIRECTORY      a line "done total" a tensor
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from core.errors import ModelError

Progress = Callable[[int, int], None]

CONTROL_TOKEN = 3  # `tokenizer.ggml.token_type` of a control token
GLOBAL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Metadata:
    """The key-value part of a GGUF file, with types checked at the point of use."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def value(self, key: str) -> object:
        """Return a value; raises ModelError if the key is missing."""
        if key not in self._fields:
            raise ModelError(f"the GGUF file has no {key}")
        content: object = self._fields[key].contents()
        return content

    def integer(self, key: str) -> int:
        """Return an integer value."""
        value = self.value(key)
        if not isinstance(value, int):
            raise ModelError(f"the GGUF file's {key} = {value!r} is not an integer")
        return value

    def number(self, key: str) -> float:
        """Return a float value, as short as its float32 allows: 1e-5, not 9.99999974e-06."""
        value = self.value(key)
        if not isinstance(value, (int, float)):
            raise ModelError(f"the GGUF file's {key} = {value!r} is not a number")
        return float(str(np.float32(value)))

    def texts(self, key: str) -> list[str]:
        """Return a list of strings."""
        value = self.value(key)
        if not isinstance(value, list):
            raise ModelError(f"the GGUF file's {key} is not a list")
        return [str(item) for item in value]


def convert(gguf_path: Path, directory: Path, progress: Progress) -> None:
    """Write a Hugging Face directory with the model of `gguf_path`; raises ModelError.

    `progress` is called with (tensors done, tensors in all).
    """
    try:
        reader = GGUFReader(gguf_path)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise ModelError(f"{gguf_path} cannot be read as GGUF ({error})") from error
    metadata = Metadata(reader)
    if metadata.value("general.architecture") != "llama":
        raise ModelError(f"architecture {metadata.value('general.architecture')!r} is unknown")
    directory.mkdir(parents=True, exist_ok=True)
    config = model_config(metadata, is_tied=all(t.name != "output.weight" for t in reader.tensors))
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", _generation_config(metadata))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(metadata))
    build_tokenizer(metadata).save(str(directory / "tokenizer.json"))
    _write_weights(reader.tensors, metadata, directory / "model.safetensors", progress)


def model_config(metadata: Metadata, is_tied: bool) -> dict[str, object]:
    """Return config.json."""
    hidden = metadata.integer("llama.embedding_length")
    heads = metadata.integer("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(metadata.texts("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": metadata.integer("llama.feed_forward_length"),
        "num_hidden_layers": metadata.integer("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": metadata.integer("llama.context_length"),
        "rms_norm_eps": metadata.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.number("llama.rope.freq_base"),
        "tie_word_embeddings": is_tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": metadata.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.integer("tokenizer.ggml.padding_token_id"),
    }


def build_tokenizer(metadata: Metadata) -> Tokenizer:
    """Return the byte-level BPE: each digit its own word, then GPT-2's pattern, no BOS added."""
    if metadata.value("tokenizer.ggml.pre") != "smollm":
        raise ModelError(f"pre-tokenizer {metadata.value('tokenizer.ggml.pre')!r} is unknown")
    tokens = metadata.texts("tokenizer.ggml.tokens")
    merges = [_merge(line) for line in metadata.texts("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(
        models.BPE(vocab={text: index for index, text in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in _control_tokens(metadata)]
    )
    return tokenizer


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def _control_tokens(metadata: Metadata) -> list[str]:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = metadata.texts("tokenizer.ggml.token_type")
    return [text for text, kind in zip(tokens, types, strict=True) if int(kind) == CONTROL_TOKEN]


def _generation_config(metadata: Metadata) -> dict[str, object]:
    """The end of a turn stops, and so does the end of a document (the `unknown` token here)."""
    eos = metadata.integer("tokenizer.ggml.eos_token_id")
    document_end = metadata.integer("tokenizer.ggml.unknown_token_id")
    return {
        "bos_token_id": metadata.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [eos, document_end],
        "pad_token_id": metadata.integer("tokenizer.ggml.padding_token_id"),
    }


def _tokenizer_config(metadata: Metadata) -> dict[str, object]:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata.integer("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[metadata.integer("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[metadata.integer("tokenizer.ggml.padding_token_id")],
        "unk_token": tokens[metadata.integer("tokenizer.ggml.unknown_token_id")],
        "additional_special_tokens": _control_tokens(metadata),
        "model_max_length": metadata.integer("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": str(metadata.value("tokenizer.chat_template")),
    }


def _write_weights(
    tensors: list[ReaderTensor], metadata: Metadata, path: Path, progress: Progress
) -> None:
    """Write the safetensors format by hand: header length, JSON header, then one tensor at a time.

    So no more than one tensor is in memory, and bfloat16 needs no library that knows the type.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        shape = [
            int(size) for size in reversed(tensor.shape)
        ]  # GGUF counts dimensions from the inside
        end = offset + math.prod(shape) * 2
        name = hugging_face_name(tensor.name)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for done, tensor in enumerate(tensors):
            progress(done, len(tensors))
            values = _rows_in_hugging_face_order(hugging_face_name(tensor.name), tensor, metadata)
            file.write(to_bfloat16(values).data)
    progress(len(tensors), len(tensors))


def hugging_face_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor; raises ModelError for an unknown one."""
    if name in GLOBAL_TENSORS:
        return GLOBAL_TENSORS[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_TENSORS and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.weight"
    raise ModelError(f"tensor {name!r} is unknown")


def _rows_in_hugging_face_order(
    name: str, tensor: ReaderTensor, metadata: Metadata
) -> npt.NDArray[np.float32]:
    values: npt.NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if name.endswith("q_proj.weight"):
        return split_rotary_pairs(values, metadata.integer("llama.attention.head_count"))
    if name.endswith("k_proj.weight"):
        return split_rotary_pairs(values, metadata.integer("llama.attention.head_count_kv"))
    return values


def split_rotary_pairs(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Return rows [heads * head_dim, n] with each head's pairs (0 1)(2 3)… as 0 2 … 1 3 …."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16 numbers, ties to even; all values must be finite."""
    if not np.isfinite(values).all():
        raise ModelError("the GGUF file holds weights that are not finite")
    bits = values.view(np.uint32)
    ties_to_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + ties_to_even) >> np.uint32(16)).astype(np.uint16)


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Convert argv[1] into the directory argv[2]; a fault is one line on stderr and code 1."""

    def progress(done: int, total: int) -> None:
        sys.stdout.write(f"{done} {total}\n")
        sys.stdout.flush()

    try:
        convert(Path(argv[1]), Path(argv[2]), progress)
    except (ModelError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
