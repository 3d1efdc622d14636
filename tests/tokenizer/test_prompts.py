"""Prompts to ids: what a refusal leaves behind."""

from core.messages.tokenizer import TextPrompt
from core.tokenizer.prompts import ContextLengthError, PromptEncoder
from tests.support.models.tiny_vocabulary import tiny_vocabulary


def test_a_refused_prompt_is_free_at_once() -> None:
    """The frames of an error would hold its job, and megabytes of prompt, in a cycle."""
    encoder = PromptEncoder(tiny_vocabulary(), None, 10, 100)
    job = encoder.start(TextPrompt("word " * 10_000))
    while not job.advance():
        pass
    assert isinstance(job.error, ContextLengthError)
    assert job.error.__traceback__ is None
