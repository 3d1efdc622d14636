"""Tiny tokenizers and chat templates in the form of each model family's files.

Owns: the same parts in the same order as in the checkpoints (normalizer, pre-tokenizer, decoder,
post-processor, which tokens are special), over a vocabulary of bytes, letters and a few merges; and
templates of our own that use what the families' templates use. Never knows: who reads them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:!?<|>_/&()\n "
SPACE = "▁"
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), (SPACE, "hello"), (SPACE, "t"))
WORDS = r"\s?[\p{L}]+|\p{N}|\s?[^\s\p{L}\p{N}]+|\s+"


@dataclass(frozen=True)
class FamilyFiles:
    """The text side of one family's checkpoint; `turn_ends` are what generation_config names."""

    tokenizer: Tokenizer
    template: str
    bos: str | None
    turn_ends: tuple[str, ...]


def byte_level(
    controls: Sequence[str], bos: str | None, normalizer: normalizers.Normalizer | None = None
) -> Tokenizer:
    """Llama 3 and Qwen: a pattern of words, then bytes; control tokens outside the vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [pair for pair in MERGES if SPACE not in pair[0]] + [("Ġ", "t")]
    tokens = [*alphabet, *("".join(pair) for pair in merges)]
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=merges,
        ignore_merges=bos is not None,
    )
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return with_controls(tokenizer, controls, bos)


def sentence_pieces(controls: Sequence[str], bos: str, *, prepends_space: bool) -> Tokenizer:
    """Llama 2, Mistral, Phi-3 and Gemma: spaces as U+2581, bytes as tokens for what is unknown."""
    start = ["<unk>", *controls[:2], *(f"<0x{byte:02X}>" for byte in range(256))]
    merged = ["".join(pair) for pair in MERGES]
    tokens = dict.fromkeys([*start, SPACE, *LETTERS.replace(" ", ""), *merged])
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=list(MERGES),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    strip: list[object] = []
    if prepends_space:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        strip = [decoders.Strip(" ", 1, 0)]
    else:
        tokenizer.normalizer = spaces
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(parts)
    return with_controls(tokenizer, ["<unk>", *controls], bos)


def with_controls(tokenizer: Tokenizer, controls: Sequence[str], bos: str | None) -> Tokenizer:
    """Add the control tokens, and a BOS before every text if the family has one."""
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in controls])
    if bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, tokenizer.token_to_id(bos))],
        )
    return tokenizer


CHATML = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- set ns = namespace(text=message.content) %}"
    "{%- if ns.text is string and '</think>' in ns.text %}"
    "{%- set ns.text = ns.text.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{{- ns.text + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
LLAMA3 = (
    "{{- bos_token }}{%- if strftime_now is defined %}{%- set day = strftime_now('%d') %}"
    "{%- else %}{%- set day = '26' %}{%- endif %}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
INSTRUCTION = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
PHI3 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] "
    "+ '<|end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
OLMO2 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' "
    "+ message['content'] }}{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n<|assistant|>\\n' }}{% endif %}"
)


def family_files() -> dict[str, FamilyFiles]:
    """Return the text side of every family."""
    qwen = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    llama3 = [
        *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>"),
        *("<|end_header_id|>", "<|eot_id|>"),
    ]
    olmo2 = ["<|endoftext|>"]
    pieces = ["<s>", "</s>"]
    gemma = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
    phi3 = ["<s>", "</s>", "<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
    return {
        "llama2": FamilyFiles(
            sentence_pieces(pieces, "<s>", prepends_space=True), INSTRUCTION, "<s>", ("</s>",)
        ),
        "llama3": FamilyFiles(
            byte_level(llama3, llama3[0]), LLAMA3, llama3[0], ("<|end_of_text|>", "<|eot_id|>")
        ),
        "mistral": FamilyFiles(
            sentence_pieces([*pieces, "[INST]", "[/INST]"], "<s>", prepends_space=True),
            INSTRUCTION, "<s>", ("</s>",),
        ),
        "qwen": FamilyFiles(
            byte_level(qwen, None, normalizers.NFC()), CHATML, None, ("<|im_end|>", qwen[0])
        ),
        "gemma": FamilyFiles(
            sentence_pieces(gemma, "<bos>", prepends_space=False),
            GEMMA, "<bos>", ("<eos>", "<end_of_turn>"),
        ),
        "phi3": FamilyFiles(
            sentence_pieces(phi3, "<s>", prepends_space=True),
            PHI3, "<s>", ("<|endoftext|>", "<|end|>", "<|assistant|>"),
        ),
        "olmo2": FamilyFiles(byte_level(olmo2, None), OLMO2, "<|endoftext|>", ("<|endoftext|>",)),
    }  # fmt: skip


def write_tokenizer(directory: Path, files: FamilyFiles) -> int:
    """Write a family's tokenizer beside a model in `directory`; return its vocabulary's size.

    config.json gets that size, generation_config.json the ids that end a turn.
    """
    tokenizer = files.tokenizer
    tokenizer.save(str(directory / "tokenizer.json"))
    texts = {"bos_token": files.bos, "eos_token": files.turn_ends[0]}
    _update(directory / "tokenizer_config.json", {**texts, "chat_template": files.template})
    ends = [tokenizer.token_to_id(name) for name in files.turn_ends]
    _update(directory / "generation_config.json", {"eos_token_id": ends})
    size = int(tokenizer.get_vocab_size())
    _update(directory / "config.json", {"vocab_size": size})
    return size


def _update(path: Path, values: dict[str, object]) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **values}))
