"""Prompts to ids, a piece at a time.

Owns: what may be wrong with a prompt, and the cheap check that refuses a hopeless one before any
work. Never knows: requests, tenants or threads. A job's `advance` may run in any thread, one at a
time each; between two pieces anyone else may have their turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from core.errors import ModelError
from core.messages.tokenizer import ChatPrompt, IdsPrompt, Prompt, TextPrompt
from core.tokenizer.chat_template import ChatTemplate, PromptParts
from core.tokenizer.pieces import pieces
from core.tokenizer.sandbox import TemplateRefusedError
from core.tokenizer.vocabulary import Vocabulary

LIGHT_BYTES = 2048  # half a millisecond of encoding
LIGHT_MESSAGES = 32


class PromptError(Exception):
    """A prompt that cannot be served; `param` is the JSON field at fault."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ContextLengthError(Exception):
    """A prompt that has at least `num_tokens` tokens, more than the context holds."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(num_tokens)
        self.num_tokens = num_tokens


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """Everything that encoding needs, the same for all prompts."""

    vocabulary: Vocabulary
    template: ChatTemplate | None
    max_model_len: int
    piece_bytes: int

    def start(self, prompt: Prompt) -> "EncodeJob":
        """Return the job of a prompt; nothing is done yet."""
        return EncodeJob(self, prompt)


class EncodeJob:
    """One prompt on its way. When `advance` has returned True, `token_ids` or `error` is final."""

    __slots__ = ("_pieces", "error", "is_light", "num_bytes", "token_ids")

    def __init__(self, encoder: PromptEncoder, prompt: Prompt) -> None:
        self.token_ids: list[int] = []
        self.error: PromptError | ContextLengthError | None = None
        self.num_bytes = prompt_bytes(prompt)
        num_messages = len(prompt.messages) if isinstance(prompt, ChatPrompt) else 0
        self.is_light = self.num_bytes <= LIGHT_BYTES and num_messages <= LIGHT_MESSAGES
        self._pieces = self._encode(encoder, prompt)

    def advance(self) -> bool:
        """Do one piece of work; True = the job is done."""
        try:
            next(self._pieces)
        except StopIteration:
            return True
        except (PromptError, ContextLengthError) as error:
            self.error = error.with_traceback(None)  # its frames hold this job: a cycle
            return True
        return False

    def _encode(self, encoder: PromptEncoder, prompt: Prompt) -> Iterator[None]:
        if isinstance(prompt, IdsPrompt):
            self.token_ids = checked_ids(prompt.token_ids, encoder.vocabulary.size)
            return
        parts = _parts(encoder, prompt)
        yield
        _check_length(encoder, parts)
        vocabulary = encoder.vocabulary
        bytes_in_turn = 0
        for part in parts:
            if isinstance(part, int):
                self.token_ids.append(part)
                continue
            piece_chars = encoder.piece_bytes if part.isascii() else encoder.piece_bytes // 3
            for piece in pieces(part, piece_chars, vocabulary.splits_on_whitespace):
                self.token_ids += _encoded(vocabulary, piece)
                bytes_in_turn += len(piece)
                if bytes_in_turn >= encoder.piece_bytes:
                    bytes_in_turn = 0
                    yield


def prompt_bytes(prompt: Prompt) -> int:
    """Return roughly how much a prompt is, bytes of text or of ids."""
    if isinstance(prompt, TextPrompt):
        return len(prompt.text.encode())
    if isinstance(prompt, IdsPrompt):
        return 4 * len(prompt.token_ids)
    return sum(_content_bytes(message) for message in prompt.messages) + _content_bytes(
        prompt.tools
    )


def _content_bytes(content: object) -> int:
    if isinstance(content, str):
        return len(content.encode())
    if isinstance(content, dict):
        return sum(_content_bytes(value) for value in content.values())
    if isinstance(content, list):
        return sum(_content_bytes(value) for value in content)
    return 8


def checked_ids(token_ids: list[int], vocabulary_size: int) -> list[int]:
    """Return the ids if all are in the vocabulary; raises PromptError naming the first other."""
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocabulary_size:
        bad = next(token for token in token_ids if not 0 <= token < vocabulary_size)
        raise PromptError(
            f"Token id {bad} is not in the vocabulary of {vocabulary_size}.", "prompt"
        )
    return token_ids


def _parts(encoder: PromptEncoder, prompt: ChatPrompt | TextPrompt) -> PromptParts:
    if isinstance(prompt, TextPrompt):
        vocabulary = encoder.vocabulary
        return [*vocabulary.prefix_ids, prompt.text, *vocabulary.suffix_ids]
    if encoder.template is None:
        raise PromptError("The model has no chat template: use /v1/completions.", "messages")
    try:
        return encoder.template.render(prompt.messages, prompt.tools, prompt.add_generation_prompt)
    except TemplateRefusedError as error:
        raise PromptError(f"The messages cannot be rendered: {error}.", "messages") from error


def _check_length(encoder: PromptEncoder, parts: PromptParts) -> None:
    """Refuse text that is too long however well it encodes, before it costs anything."""
    longest = encoder.vocabulary.longest_token_bytes
    num_bytes = sum(len(part.encode()) for part in parts if isinstance(part, str))
    num_tokens = sum(isinstance(part, int) for part in parts) + -(-num_bytes // longest)
    if num_tokens > encoder.max_model_len:
        raise ContextLengthError(num_tokens)


def _encoded(vocabulary: Vocabulary, piece: str) -> list[int]:
    try:
        return vocabulary.encode(piece)
    except ModelError as error:
        raise PromptError(f"The text cannot be encoded: {error}.", "prompt") from error
