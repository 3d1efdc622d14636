"""The tiny model's tokenizer, read once for all tests of a process."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from core.tokenizer.vocabulary import Vocabulary
from tests.support.models.tiny_model import write_tiny_model

VOCAB_SIZE = 900


@cache
def tiny_tokenizer_json() -> dict[str, Any]:
    """Return tokenizer.json of a tiny model with enough merges to make encoding interesting."""
    with tempfile.TemporaryDirectory() as place:
        directory = write_tiny_model(Path(place), vocab_size=VOCAB_SIZE, layers=1)
        content: dict[str, Any] = json.loads((directory / "tokenizer.json").read_bytes())
    return content


@cache
def tiny_vocabulary() -> Vocabulary:
    """Return the tiny vocabulary as it is."""
    return Vocabulary(tiny_tokenizer_json(), VOCAB_SIZE)


@cache
def tiny_digits_vocabulary() -> Vocabulary:
    """Return the tiny vocabulary with each digit a word of its own, as in SmolLM2."""
    content = tiny_tokenizer_json()
    digits = {"type": "Digits", "individual_digits": True}
    sequence = {"type": "Sequence", "pretokenizers": [digits, content["pre_tokenizer"]]}
    return Vocabulary({**content, "pre_tokenizer": sequence}, VOCAB_SIZE)
