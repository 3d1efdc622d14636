"""A conversation to a prompt, in which only the template can write control tokens.

Owns: what the template is given, and the proof of where a control token in its output came from.
Never knows: requests; how text becomes ids is the vocabulary's.

A template may join, trim and search the texts of the client before it puts them out, so the output
alone does not tell who wrote a control token. Therefore some characters of the client's texts are
replaced before rendering: for every control token one guard character is chosen that it cannot be
without ("|" for <|im_end|>, say), and each guard in a text of the client becomes a private-use
character that occurs nowhere in this conversation. What is rendered has the same length and, to
the template, the same words; but a control token found in the output must owe its guard to the
template. After the control tokens are cut out, the guards are put back.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tokenizers import AddedToken

from core.clock import Clock
from core.errors import ModelError
from core.models.directory import read_json_object
from core.tokenizer.sandbox import BoundedTemplate, TemplateRefusedError
from core.tokenizer.vocabulary import Vocabulary

PromptParts = list[int | str]
"""A prompt between template and encoding: ids of control tokens, and ordinary text."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
MAX_DEPTH = 32  # of JSON in messages and tools
_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_PREFERRED_GUARDS = "|｜▁:#@$%^&*~[]{}<>"
_SPECIAL_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token")


class ChatTemplate:
    """The template of one model; `render` may run in any thread, one at a time."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        vocabulary: Vocabulary,
        clock: Clock,
        timeout_ms: int,
        max_output_bytes: int,
    ) -> None:
        """Compile `source`; raises ModelError if this engine does not support it."""
        self._template = BoundedTemplate(source, clock, timeout_ms, max_output_bytes)
        self._source = source
        self._special_tokens = dict(special_tokens)
        tokens = sorted(
            vocabulary.control_tokens.items(), key=lambda item: len(item[1].content), reverse=True
        )
        self._control_ids = [token_id for token_id, _ in tokens]
        self._guards = choose_guards(token.content for _, token in tokens)
        self._controls = re.compile("|".join(_pattern(token) for _, token in tokens) or "(?!)")

    @classmethod
    def load(
        cls,
        directory: Path,
        vocabulary: Vocabulary,
        clock: Clock,
        timeout_ms: int,
        max_output_bytes: int,
    ) -> "ChatTemplate | None":
        """Read the template of a model directory; None = it has none. Raises ModelError."""
        config_path = directory / "tokenizer_config.json"
        config = read_json_object(config_path) if config_path.is_file() else {}
        source = _template_source(directory, config)
        if source is None:
            return None
        tokens = {key: _token_text(config.get(key)) for key in _SPECIAL_TOKEN_KEYS}
        known = {key: text for key, text in tokens.items() if text}
        return cls(source, known, vocabulary, clock, timeout_ms, max_output_bytes)

    def render(
        self,
        messages: list[dict[str, object]],
        tools: list[dict[str, object]] | None,
        add_generation_prompt: bool,
    ) -> PromptParts:
        """Return the prompt in parts; raises TemplateRefusedError."""
        _check_roles(messages)
        hidden = self._hiding_table(messages, tools)
        output = self._template.render(
            {
                **self._special_tokens,
                "messages": _translated(messages, hidden),
                "tools": _translated(tools, hidden),
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return self._parts(output, {ord(private): chr(guard) for guard, private in hidden.items()})

    def _parts(self, output: str, shown: Mapping[int, str]) -> PromptParts:
        parts: PromptParts = []
        position = 0
        for match in self._controls.finditer(output):
            if position < match.start():
                parts.append(output[position : match.start()].translate(shown))
            assert match.lastindex is not None
            parts.append(self._control_ids[match.lastindex - 1])
            position = match.end()
        if position < len(output):
            parts.append(output[position:].translate(shown))
        return parts

    def _hiding_table(self, *contents: object) -> dict[int, str]:
        """Map each guard to a private character that neither template nor client uses."""
        used = set(self._source)
        for content in contents:
            for text in _texts(content, MAX_DEPTH):
                used.update(text)
        guards = [guard for guard in self._guards if guard in used]
        free = (chr(c) for area in _PRIVATE_USE for c in area if chr(c) not in used)
        table = dict(zip(map(ord, guards), free, strict=False))
        if len(table) < len(guards):
            raise TemplateRefusedError("the conversation uses every private-use character")
        return table


def _check_roles(messages: list[dict[str, object]]) -> None:
    """A template may build a control token around the role, so roles are a closed set."""
    for index, message in enumerate(messages):
        if message.get("role") not in ROLES:
            allowed = ", ".join(sorted(ROLES))
            raise TemplateRefusedError(f"messages[{index}].role is not one of {allowed}")


def _pattern(token: AddedToken) -> str:
    """Return a pattern with one group; some tokens swallow the whitespace beside them."""
    before, after = r"\s*" * token.lstrip, r"\s*" * token.rstrip
    return f"{before}({re.escape(token.content)}){after}"


def choose_guards(control_tokens: Iterable[str]) -> str:
    """Return few characters of which every control token has one.

    None can be part of an identifier, so that field names stay what they are; preferred are those
    that templates never look for in a message. A token that could be an identifier has no guard and
    raises ModelError.
    """
    guards = ""
    for token in control_tokens:
        if any(guard in token for guard in guards):
            continue
        candidates = [c for c in token if not f"a{c}".isidentifier() and not c.isspace()]
        if not candidates:
            raise ModelError(f"control token {token!r} cannot be told from a word: not supported")
        guards += min(candidates, key=_guard_rank)
    return guards


def _guard_rank(character: str) -> int:
    rank = _PREFERRED_GUARDS.find(character)
    return rank if rank >= 0 else len(_PREFERRED_GUARDS)


def _texts(content: object, depth: int) -> Iterator[str]:
    """Yield every string in JSON-like content, keys included; raises TemplateRefusedError."""
    if depth == 0:
        raise TemplateRefusedError(f"messages or tools are nested deeper than {MAX_DEPTH} levels")
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        for key, value in content.items():
            yield str(key)
            yield from _texts(value, depth - 1)
    elif isinstance(content, list):
        for item in content:
            yield from _texts(item, depth - 1)


def _translated(content: object, table: Mapping[int, str]) -> object:
    """Return the content with every string translated, keys included."""
    if isinstance(content, str):
        return content.translate(table)
    if isinstance(content, dict):
        return {str(k).translate(table): _translated(v, table) for k, v in content.items()}
    if isinstance(content, list):
        return [_translated(item, table) for item in content]
    return content


def _template_source(directory: Path, config: Mapping[str, object]) -> str | None:
    """A file chat_template.jinja wins over the configuration's entry, as in Hugging Face."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _token_text(content: object) -> str:
    """A special token is a string, or an object with its string as `content`."""
    if isinstance(content, dict):
        content = content.get("content")
    return content if isinstance(content, str) else ""
