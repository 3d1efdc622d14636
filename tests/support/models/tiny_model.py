"""A tiny random Llama-family model as a Hugging Face directory, the same for the same seed.

Owns: config.json, generation_config.json, model.safetensors, tokenizer.json and
tokenizer_config.json of a model small enough for tests. Never knows: who loads it. Weights are
float32 numbers that bfloat16 holds exactly, so that both dtypes of the engine see the same model.
The tokenizer is byte-level BPE without unknown tokens: ids 0 and 1 are the control tokens, 2..257
the bytes, then merges of frequent letter pairs.
"""

import json
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
IM_START_ID = 0
IM_END_ID = 1
NUM_CONTROL_TOKENS = 2
NUM_BYTES = 256
LETTERS = "etaoinshrdlucmfwygpbvkxqjz"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Tensors = dict[str, npt.NDArray[np.float32]]


def write_tiny_model(
    directory: Path,
    *,
    seed: int = 0,
    vocab_size: int = 300,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    intermediate: int = 96,
    max_position: int = 512,
    tie_embeddings: bool = True,
) -> Path:
    """Write the model into `directory` (made if missing) and return it."""
    assert vocab_size >= NUM_CONTROL_TOKENS + NUM_BYTES, vocab_size
    assert heads % kv_heads == 0, (heads, kv_heads)
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_position,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tie_embeddings,
        "torch_dtype": "float32",
        "bos_token_id": IM_START_ID,
        "eos_token_id": IM_END_ID,
    }
    shapes = _shapes(
        vocab_size, layers, hidden, heads * head_dim, kv_heads * head_dim, intermediate
    )
    if tie_embeddings:
        del shapes["lm_head.weight"]
    save_file(_random_tensors(shapes, seed), directory / "model.safetensors")
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", {"eos_token_id": [IM_END_ID]})
    _write_json(directory / "tokenizer.json", _tokenizer(vocab_size))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(max_position))
    return directory


def _shapes(
    vocab_size: int, layers: int, hidden: int, q_size: int, kv_size: int, intermediate: int
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab_size, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab_size, hidden),
    }
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_size, hidden),
        "self_attn.k_proj.weight": (kv_size, hidden),
        "self_attn.v_proj.weight": (kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, q_size),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
    }
    for index, (name, shape) in product(range(layers), layer.items()):
        shapes[f"model.layers.{index}.{name}"] = shape
    return shapes


def _random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> Tensors:
    """Norms near 1 and matrices that keep the scale of their input: logits spread a few nats."""
    generator = np.random.Generator(np.random.PCG64(seed))
    tensors: Tensors = {}
    for name in sorted(shapes):
        shape = shapes[name]
        noise = generator.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            values = 1.0 + 0.1 * noise
        elif name == "model.embed_tokens.weight":
            values = 0.25 * noise
        else:
            values = noise * np.float32(1.5 / np.sqrt(shape[1]))
        tensors[name] = round_to_bfloat16(values.astype(np.float32))
    return tensors


def round_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the nearest float32 numbers that bfloat16 holds exactly (ties to even)."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)


def _byte_alphabet() -> list[str]:
    """The 256 printable characters that stand for bytes in byte-level BPE, by byte value."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(NUM_BYTES)]


def _tokenizer(vocab_size: int) -> dict[str, object]:
    alphabet = _byte_alphabet()
    space = alphabet[0x20]
    pairs = [(space, letter) for letter in LETTERS] + list(product(LETTERS, LETTERS))
    merges = pairs[: vocab_size - NUM_CONTROL_TOKENS - NUM_BYTES]
    tokens = [IM_START, IM_END, *alphabet, *(left + right for left, right in merges)]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_control_token(IM_START_ID, IM_START), _control_token(IM_END_ID, IM_END)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


def _control_token(token_id: int, content: str) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": True}


def _tokenizer_config(max_position: int) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": IM_START,
        "eos_token": IM_END,
        "additional_special_tokens": [IM_START, IM_END],
        "model_max_length": max_position,
        "chat_template": CHAT_TEMPLATE,
    }


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
