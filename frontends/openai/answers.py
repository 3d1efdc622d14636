"""What an operation has brought so far, choice by choice, and its usage.

Owns: the accumulation of chunks. Never knows: JSON shapes or HTTP. Whole answers keep everything;
streams keep only the counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from core.messages.http import Chunk, TokenLogprob
from core.messages.tokenizer import Generate


@dataclass(slots=True)
class Choice:
    """One choice of a whole answer."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.texts)

    def add(self, chunk: Chunk) -> None:
        """Append a chunk."""
        self.texts.append(chunk.text)
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.prompt_logprobs
        self.logprobs += chunk.logprobs
        if chunk.finish_reason:
            self.finish_reason = chunk.finish_reason
            self.stop_reason = chunk.stop_reason


@dataclass(slots=True)
class Usage:
    """Tokens of an operation. Its prompts count once, however many choices each has."""

    num_choices_per_prompt: int
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)  # in the order of the ends

    def add(self, chunk: Chunk) -> None:
        """Count a choice by its last chunk; the counts of earlier ones are not final."""
        if not chunk.finish_reason:
            return
        self.finish_reasons.append(chunk.finish_reason)
        self.num_output_tokens += chunk.num_output_tokens
        if chunk.choice % self.num_choices_per_prompt == 0:
            self.num_prompt_tokens += chunk.num_prompt_tokens
            self.num_cached_tokens += chunk.num_cached_tokens

    def as_dict(self) -> dict[str, object]:
        """Return OpenAI's `usage`."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


def choices_of(message: Generate) -> Sequence[Choice]:
    """Return the choices of an operation, empty yet."""
    return [Choice() for _ in range(len(message.prompts) * message.n)]
