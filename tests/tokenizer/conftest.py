"""The tiny model's vocabulary, and the same with every digit apart as in SmolLM2."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.tokenizer.vocabulary import Vocabulary
from tests.support.tiny_model import write_tiny_model

VOCAB_SIZE = 900


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with enough merges to make encoding interesting."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), vocab_size=VOCAB_SIZE, layers=1)


@pytest.fixture(scope="session")
def tokenizer_json(tiny_directory: Path) -> dict[str, Any]:
    """The content of the tiny tokenizer's file."""
    content: dict[str, Any] = json.loads((tiny_directory / "tokenizer.json").read_bytes())
    return content


@pytest.fixture(scope="session")
def vocabulary(tokenizer_json: dict[str, Any]) -> Vocabulary:
    """The tiny vocabulary as it is."""
    return Vocabulary(tokenizer_json, VOCAB_SIZE)


@pytest.fixture(scope="session")
def digits_vocabulary(tokenizer_json: dict[str, Any]) -> Vocabulary:
    """The tiny vocabulary with each digit a word of its own."""
    digits = {"type": "Digits", "individual_digits": True}
    steps = [digits, tokenizer_json["pre_tokenizer"]]
    sequence = {"type": "Sequence", "pretokenizers": steps}
    return Vocabulary({**tokenizer_json, "pre_tokenizer": sequence}, VOCAB_SIZE)
