"""The prompts of a request, in the engine's words.

Owns: text, token ids, lists of either, conversations; and their bounds. Never knows: templates or
tokenizers. A list of prompts is decoded by what its first item is, after its items were counted: a
megabyte of `[[],[],…` would otherwise become a hundred megabytes of lists before its length is
looked at.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from core.config.engine import MAX_MODEL_LEN_LIMIT
from core.messages.tokenizer import ChatPrompt, IdsPrompt, Prompt, TextPrompt
from frontends.http.errors import (
    bad_request,
    context_length_exceeded,
    unsupported_parameter,
)
from frontends.openai.decode import field_error
from frontends.openai.schema import MAX_PROMPTS, ChatMessage, TokenId

Ids = Annotated[list[TokenId], Meta(max_length=MAX_MODEL_LEN_LIMIT)]

TEXT = msgspec.json.Decoder(str)
TEXTS = msgspec.json.Decoder(Annotated[list[str], Meta(max_length=MAX_PROMPTS)])
IDS = msgspec.json.Decoder(Ids)
LISTS_OF_IDS = msgspec.json.Decoder(Annotated[list[Ids], Meta(max_length=MAX_PROMPTS)])

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
UNSUPPORTED_ROLES = frozenset({"tool", "function"})
PART_SEPARATOR = "\n"
WHITESPACE = b" \t\r\n"

ValueT = TypeVar("ValueT")


def completion_prompts(raw: msgspec.Raw, *, max_prompts: int, max_model_len: int) -> list[Prompt]:
    """Return the prompts of a completions request; raises the 400."""
    source = bytes(raw)
    if source[:1] != b"[":
        return [_text_prompt(_decode(TEXT, source), "prompt")]
    first = source[1:].lstrip(WHITESPACE)[:1]
    if first == b"[":
        _check_count(source.count(b"[") - 1, max_prompts)
        lists = _decode(LISTS_OF_IDS, source)
        return [_ids_prompt(ids, f"prompt[{i}]") for i, ids in enumerate(lists)]
    if first == b'"':
        _check_count(_least_number_of_texts(source), max_prompts)
        texts = _decode(TEXTS, source)
        _check_count(len(texts), max_prompts)
        return [_text_prompt(text, f"prompt[{i}]") for i, text in enumerate(texts)]
    num_ids = source.count(b",") + 1
    if num_ids > max_model_len:
        raise context_length_exceeded(max_model_len, num_ids, num_ids)
    return [_ids_prompt(_decode(IDS, source), "prompt")]


def chat_prompt(messages: list[ChatMessage], *, add_generation_prompt: bool | None) -> ChatPrompt:
    """Return the conversation for the model's template; raises the 400."""
    turns = [_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]
    return ChatPrompt(turns, add_generation_prompt=add_generation_prompt is not False)


def _decode(decoder: msgspec.json.Decoder[ValueT], source: bytes) -> ValueT:
    try:
        return decoder.decode(source)
    except msgspec.ValidationError as error:
        raise field_error(str(error), parent="prompt") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise bad_request(f"The parameter 'prompt' is not valid JSON: {error}.", "prompt") from None


def _least_number_of_texts(source: bytes) -> int:
    """Return a number of strings that a JSON list surely has: quotes, but for escaped ones."""
    return (source.count(b'"') - source.count(b'\\"')) // 2


def _check_count(num_prompts: int, max_prompts: int) -> None:
    if num_prompts > max_prompts:
        raise bad_request(
            f"The parameter 'prompt' holds {num_prompts} prompts of at most {max_prompts}"
            " (setting: http.max_prompts).",
            "prompt",
        )


def _text_prompt(text: str, path: str) -> TextPrompt:
    if not text:
        raise bad_request(
            f"The parameter '{path}' is empty: a prompt needs at least one token.", path
        )
    return TextPrompt(text)


def _ids_prompt(ids: list[int], path: str) -> IdsPrompt:
    if not ids:
        raise bad_request(
            f"The parameter '{path}' is empty: a prompt needs at least one token.", path
        )
    return IdsPrompt(ids)


def _turn(message: ChatMessage, path: str) -> dict[str, object]:
    role = ROLES.get(message.role)
    if role is None and message.role in UNSUPPORTED_ROLES:
        raise unsupported_parameter(f"{path}.role", repr(message.role))
    if role is None:
        raise bad_request(
            f"The parameter '{path}.role' is unknown: use one of {', '.join(ROLES)}.",
            f"{path}.role",
        )
    for name in ("tool_calls", "function_call"):
        raw = getattr(message, name)
        if raw is not msgspec.UNSET and bytes(raw) not in (b"null", b"[]"):
            raise unsupported_parameter(f"{path}.{name}")
    turn: dict[str, object] = {"role": role, "content": _content(message, path)}
    if message.name is not None:
        turn["name"] = message.name
    return turn


def _content(message: ChatMessage, path: str) -> str:
    """Return the text of a message; an assistant's turn may have none."""
    content = message.content
    if content is None and message.role != "assistant":
        raise bad_request(f"The parameter '{path}.content' is missing.", f"{path}.content")
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        part_path = f"{path}.content[{index}]"
        if part.type != "text":
            raise unsupported_parameter(f"{part_path}.type", repr(part.type[:64]))
        if part.text is None:
            raise bad_request(f"The parameter '{part_path}.text' is missing.", f"{part_path}.text")
        texts.append(part.text)
    return PART_SEPARATOR.join(texts)
