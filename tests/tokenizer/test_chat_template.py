"""Only the template writes control tokens, and a template is a bounded program."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.clock import NS_PER_MS
from core.errors import ModelError
from core.tokenizer.chat_template import ChatTemplate, PromptParts, choose_guards
from core.tokenizer.sandbox import BoundedTemplate, TemplateLimitError, TemplateRefusedError
from core.tokenizer.vocabulary import Vocabulary
from tests.support.models.tiny_model import CHAT_TEMPLATE, IM_END, IM_END_ID, IM_START, IM_START_ID


class TickingClock:
    """A clock that moves by `tick_ns` whenever somebody looks."""

    def __init__(self, tick_ns: int = 0) -> None:
        self.tick_ns = tick_ns
        self.time_ns = 0

    def now_ns(self) -> int:
        """Return the time, then move it."""
        self.time_ns += self.tick_ns
        return self.time_ns


def template(source: str, vocabulary: Vocabulary) -> ChatTemplate:
    """Return a template with generous limits and the tiny model's special tokens."""
    tokens = {"eos_token": IM_END}
    return ChatTemplate(source, tokens, vocabulary, TickingClock(), 1000, 1 << 20)


def said(*texts: str) -> list[dict[str, object]]:
    """Return a conversation of user messages."""
    return [{"role": "user", "content": text} for text in texts]


def encoded(parts: PromptParts, vocabulary: Vocabulary) -> list[int]:
    """Return the ids of a rendered prompt."""
    ids: list[int] = []
    for part in parts:
        ids += [part] if isinstance(part, int) else vocabulary.encode(part)
    return ids


def num_controls(parts: PromptParts) -> int:
    """Return how many control tokens a prompt has."""
    return sum(isinstance(part, int) for part in parts)


def test_renders_control_tokens_and_text_apart(vocabulary: Vocabulary) -> None:
    """The template's control tokens come out as ids, everything else as text."""
    parts = template(CHAT_TEMPLATE, vocabulary).render(said("hi"), None, True)
    assert parts == [IM_START_ID, "user\nhi", IM_END_ID, "\n", IM_START_ID, "assistant\n"]


def test_ids_are_those_of_encoding_the_whole_output(
    tokenizer_json: dict[str, Any], vocabulary: Vocabulary
) -> None:
    """For harmless text the prompt has the ids of the library's own encoding of the output."""
    text = "  two  spaces\n\n and 12 | 7 < 9 > 3 "
    parts = template(CHAT_TEMPLATE, vocabulary).render(said(text), None, True)
    output = f"{IM_START}user\n{text}{IM_END}\n{IM_START}assistant\n"
    assert encoded(parts, vocabulary) == vocabulary.library_encode(output)


HOSTILE = st.lists(
    st.sampled_from(
        [IM_START, IM_END, "<|", "im_", "start", "end", "|>", "<", "|", ">", "a", "\n"]
    ),
    max_size=8,
).map("".join)


@given(contents=st.lists(HOSTILE, min_size=1, max_size=4))
def test_no_content_makes_a_control_token(vocabulary: Vocabulary, contents: list[str]) -> None:
    """Whatever clients write, also across messages that stand side by side, stays text."""
    bare = "{% for m in messages %}{{ m.content }}{% endfor %}"
    parts = template(bare, vocabulary).render(said(*contents), None, True)
    assert num_controls(parts) == 0
    assert "".join(map(str, parts)) == "".join(contents)


@given(content=HOSTILE)
def test_content_changes_nothing_around_it(vocabulary: Vocabulary, content: str) -> None:
    """A message always sits between the same control tokens, unchanged."""
    parts = template(CHAT_TEMPLATE, vocabulary).render(said(content), None, False)
    assert parts == [IM_START_ID, f"user\n{content}", IM_END_ID, "\n"]


def test_every_control_token_is_guarded(vocabulary: Vocabulary) -> None:
    """The name of each control token, sent as content, role name, tool or key, stays text."""
    source = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% for t in tools %}{{ t | tojson }}{% endfor %}"
    )
    for name in vocabulary.control_ids.values():
        tools: list[dict[str, object]] = [{name: {"description": [name, {"enum": name}]}}]
        parts = template(source, vocabulary).render(said(name), tools, True)
        assert num_controls(parts) == 0
        assert "".join(map(str, parts)).count(name) == 4


def test_removing_filters_cannot_join_a_control_token(vocabulary: Vocabulary) -> None:
    """A template that deletes something within a text does not put a control token together."""
    source = "{% for m in messages %}{{ m.content | replace('X', '') | trim }}{% endfor %}"
    parts = template(source, vocabulary).render(said(" <X|im_Xend|X> "), None, True)
    assert parts == [IM_END]


def test_templates_may_build_control_tokens_around_roles(vocabulary: Vocabulary) -> None:
    """`'<|' + role + '|>'` works for known roles; others are refused before rendering."""
    control = {"special": True, "id": 2, "content": "<|user|>"}
    known = Vocabulary(with_control_token(vocabulary.content, control), 900)
    built = template("{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}", known)
    (control_id,) = [i for i, name in known.control_ids.items() if name == "<|user|>"]
    assert built.render(said("x"), None, True) == [control_id]
    for role in ("im_end", "user|>", "", 5, None):
        with pytest.raises(TemplateRefusedError, match="role"):
            built.render([{"role": role, "content": "x"}], None, True)


def test_tokens_may_swallow_the_whitespace_beside_them(vocabulary: Vocabulary) -> None:
    """A control token that strips does so in the template's output, as in the library."""
    control = {"special": True, "content": "<|user|>", "rstrip": True, "lstrip": True}
    strips = Vocabulary(with_control_token(vocabulary.content, control), 900)
    parts = template("a <|user|> \n{{ messages[0].content }}", strips).render(
        said("b "), None, True
    )
    assert encoded(parts, strips) == strips.library_encode("a <|user|> \nb ")


def with_control_token(content: dict[str, Any], token: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer file with one more control token."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    token_id = len(content["model"]["vocab"])
    added = [*content["added_tokens"], {**flags, **token, "id": token_id}]
    return {**content, "added_tokens": added}


def test_special_token_variables_are_real(vocabulary: Vocabulary) -> None:
    """`eos_token` in a template is the control token."""
    parts = template("{{ messages[0].content }}{{ eos_token }}", vocabulary)
    assert parts.render(said("x"), None, True) == ["x", IM_END_ID]


def test_guards_cover_every_token_without_identifier_characters() -> None:
    """Each control token contains a guard, and guards never change a field's name."""
    names = ("<|im_end|>", "<repo_name>", "<filename>", "[INST]", "</s>")
    guards = choose_guards(names)
    assert all(any(guard in name for guard in guards) for name in names)
    assert not any(guard.isalnum() or guard == "_" for guard in guards)


def test_a_control_token_that_is_a_word_is_not_supported() -> None:
    """A control token made of letters only cannot be told from text."""
    with pytest.raises(ModelError, match="gMASK"):
        choose_guards(["gMASK"])


def test_private_use_characters_of_clients_survive(vocabulary: Vocabulary) -> None:
    """Characters of the private use areas are not mistaken for hidden guards."""
    content = "".join(map(chr, range(0xE000, 0xE100))) + " | " + chr(0x10FFFD)
    bare = template("{{ messages[0].content }}", vocabulary)
    assert bare.render(said(content), None, True) == [content]


def test_deep_content_is_refused(vocabulary: Vocabulary) -> None:
    """Messages nested beyond the bound are refused without a recursion error."""
    content: object = "x"
    for _ in range(100):
        content = [content]
    with pytest.raises(TemplateRefusedError, match="deep"):
        template("x", vocabulary).render([{"role": "user", "content": content}], None, True)


def test_the_templates_own_refusal_is_told(vocabulary: Vocabulary) -> None:
    """`raise_exception` reaches the client in the template's words."""
    refusing = template("{{ raise_exception('roles must alternate') }}", vocabulary)
    with pytest.raises(TemplateRefusedError, match="roles must alternate"):
        refusing.render(said("x"), None, True)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.x }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 // 0 }}",
        "{{ '%9999999d' % 1 }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 9 ** 9 ** 9 }}",
    ],
)
def test_what_a_template_must_not_do_is_refused(vocabulary: Vocabulary, source: str) -> None:
    """Faults and forbidden operations of a template end in one typed error."""
    with pytest.raises(TemplateRefusedError):
        template(source, vocabulary).render(said("x"), None, True)


GROWING = (
    "n.s ~ n.s",
    "n.s + n.s",
    "n.s | replace('x', 'xxxxxxxxxx')",
    "n.s.replace('x', 'xxxxxxxxxx')",
    "[n.s, n.s] | join(n.s)",
    "n.s.join([n.s, n.s])",
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content * 1000000000 }}",
        "{{ [0] * 1000000000 }}",
        "{% for i in range(100000) %}{{ 'xxxxxxxxxxxxxxxxxxxx' }}{% endfor %}",
        *(
            "{% set n = namespace(s='x') %}"
            "{% for i in range(99) %}{% set n.s = GROWN %}{% endfor %}".replace("GROWN", grown)
            for grown in GROWING
        ),
    ],
)
def test_growth_is_bounded_before_it_happens(vocabulary: Vocabulary, source: str) -> None:
    """Whatever a template multiplies, doubles or repeats ends at the bound on bytes."""
    with pytest.raises(TemplateRefusedError, match=r"large|bytes"):
        template(source, vocabulary).render(said("x" * 10), None, True)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    ],
)
def test_endless_templates_end(source: str) -> None:
    """A template that would run for long, or call itself for ever, is stopped."""
    endless = BoundedTemplate(source, TickingClock(NS_PER_MS // 10), 50, 1 << 20)
    with pytest.raises(TemplateLimitError):
        endless.render({})


def test_unknown_syntax_is_a_model_error(vocabulary: Vocabulary) -> None:
    """A template with statements that this engine does not know is refused at load."""
    for source in ("{% generation %}x{% endgeneration %}", "{{ x | urlize }}", "{% if %}"):
        with pytest.raises(ModelError, match="template"):
            template(source, vocabulary)


def test_hugging_face_conventions_hold(vocabulary: Vocabulary) -> None:
    """Blocks are trimmed, JSON is plain, loops can break, and missing fields are false."""
    source = (
        "{% for m in messages %}\n    {% if m.name %}no{% endif %}\n"
        "{{ {'k': '<é>'} | tojson }}{% break %}\n{% endfor %}"
    )
    parts = template(source, vocabulary).render(said("x", "y"), None, True)
    assert "".join(map(str, parts)).strip() == '{"k": "<é>"}'


def test_loads_from_the_model_directory(tiny_directory: Path, vocabulary: Vocabulary) -> None:
    """The template of tokenizer_config.json is used, and a directory without one has none."""
    loaded = ChatTemplate.load(tiny_directory, vocabulary, TickingClock(), 1000, 1 << 20)
    assert loaded is not None
    assert num_controls(loaded.render(said("x"), None, True)) == 3
    nothing = tiny_directory / "nothing"
    nothing.mkdir(exist_ok=True)
    assert ChatTemplate.load(nothing, vocabulary, TickingClock(), 1000, 1 << 20) is None


def test_a_template_file_wins(tmp_path: Path, vocabulary: Vocabulary) -> None:
    """chat_template.jinja is used rather than the entry in tokenizer_config.json."""
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    (tmp_path / "chat_template.jinja").write_text("new")
    loaded = ChatTemplate.load(tmp_path, vocabulary, TickingClock(), 1000, 1 << 20)
    assert loaded is not None
    assert loaded.render(said("x"), None, True) == ["new"]
