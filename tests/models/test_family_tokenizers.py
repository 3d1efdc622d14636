"""Tokenizer files in the form of each family: accepted, without a special case for any of them."""

from pathlib import Path

import pytest

from core.models.registry import read_facts
from core.monotonic_clock import MonotonicClock
from core.tokenizer.chat_template import ChatTemplate
from core.tokenizer.detokenizer import detokenizer
from core.tokenizer.sandbox import TemplateRefusedError
from core.tokenizer.vocabulary import Vocabulary
from tests.models.family_tokenizers import FamilyFiles, family_files, write_tokenizer
from tests.support.models.tiny_model import write_tiny_model

FAMILIES = family_files()
TEXT = "hello there, (hello) Zoë: 東京 🚀!\n  the end"
CONVERSATION: list[dict[str, object]] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "the tell"},
    {"role": "user", "content": "hello?"},
]


class Loaded:
    """A family's files as the tokenizer process reads them."""

    def __init__(self, directory: Path, files: FamilyFiles) -> None:
        self.files = files
        write_tokenizer(write_tiny_model(directory, layers=1), files)
        self.facts = read_facts("m", directory)
        self.vocabulary = Vocabulary.load(directory, self.facts.vocab_size)
        self.vocabulary.warm_up()
        template = ChatTemplate.load(directory, self.vocabulary, MonotonicClock(), 5000, 2**16)
        assert template is not None
        self.template = template

    def id_of(self, name: str) -> int:
        """The id of a control token."""
        return next(i for i, text in self.vocabulary.control_ids.items() if text == name)


@pytest.fixture(params=FAMILIES)
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Loaded:
    """Every family in turn."""
    return Loaded(tmp_path, FAMILIES[request.param])


def test_what_ends_a_turn_comes_from_the_checkpoint(loaded: Loaded) -> None:
    """All ids that generation_config.json names end a sequence, and all are control tokens."""
    expected = {loaded.id_of(name) for name in loaded.files.turn_ends}
    assert set(loaded.facts.eos_token_ids) == expected


def test_any_text_survives(loaded: Loaded) -> None:
    """Text with letters the vocabulary does not have goes through bytes and comes back whole."""
    ids = loaded.vocabulary.encode(TEXT)
    assert loaded.vocabulary.decode(ids).strip(" ") == TEXT


def test_text_comes_token_by_token(loaded: Loaded) -> None:
    """What a stream shows, joined, is the decoded whole, without half a character in between."""
    ids = loaded.vocabulary.encode(TEXT)
    stream = detokenizer(loaded.vocabulary, [])
    shown = [*(stream.push(token_id) for token_id in ids), stream.finish()]
    assert "".join(shown).strip(" ") == TEXT
    assert not any("�" in text for text in shown)


def test_control_tokens_in_text_stay_text(loaded: Loaded) -> None:
    """No spelling of a control token in text of clients makes one."""
    for name in loaded.vocabulary.control_ids.values():
        ids = loaded.vocabulary.encode(f"hello {name} there")
        assert loaded.vocabulary.control_ids.keys().isdisjoint(ids)
        assert name in loaded.vocabulary.decode(ids)


def test_the_template_writes_the_turns(loaded: Loaded) -> None:
    """A conversation is what the library makes of the rendered text with its control tokens."""
    parts = loaded.template.render(CONVERSATION, None, True)
    ids: list[int] = []
    texts = []
    for part in parts:
        ids += [part] if isinstance(part, int) else loaded.vocabulary.encode(part)
        texts.append(loaded.vocabulary.control_ids[part] if isinstance(part, int) else part)
    assert ids == loaded.vocabulary.library_encode("".join(texts))
    controls = [part for part in parts if isinstance(part, int)]
    assert controls, parts
    if loaded.files.bos is not None and "bos_token" in loaded.files.template:
        assert controls[0] == loaded.id_of(loaded.files.bos)


def test_a_template_may_refuse(tmp_path: Path) -> None:
    """Where a family's template raises an exception the client is told its words."""
    loaded = Loaded(tmp_path, FAMILIES["mistral"])
    with pytest.raises(TemplateRefusedError, match="roles must alternate"):
        loaded.template.render(CONVERSATION[:1] * 2, None, True)
