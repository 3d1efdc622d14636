"""Vocabularies for the tests of this folder."""

from pathlib import Path
from typing import Any

import pytest

from core.tokenizer.vocabulary import Vocabulary
from tests.support.models.tiny_model import write_tiny_model
from tests.support.models.tiny_vocabulary import (
    VOCAB_SIZE,
    tiny_digits_vocabulary,
    tiny_tokenizer_json,
    tiny_vocabulary,
)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's directory."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), vocab_size=VOCAB_SIZE, layers=1)


@pytest.fixture(scope="session")
def tokenizer_json() -> dict[str, Any]:
    """The content of the tiny tokenizer's file."""
    return tiny_tokenizer_json()


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """The tiny vocabulary as it is."""
    return tiny_vocabulary()


@pytest.fixture(scope="session")
def digits_vocabulary() -> Vocabulary:
    """The tiny vocabulary with each digit a word of its own."""
    return tiny_digits_vocabulary()
