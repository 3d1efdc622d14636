"""One client request as the tokenizer sees it: its prompts, its choices, and what http was told.

Owns: the checks of a whole operation and the making of its requests. Never knows: other operations.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt

from core.kv_cache.digest import chain_digests, join_digests, namespace_digest
from core.messages.http import Failed, Queued
from core.messages.scheduler import Submit
from core.messages.tokenizer import Generate, TextPrompt
from core.sampling_params import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS
from core.tenancy.classes import TrafficClass
from core.tokenizer.choice import Choice, ChoiceState
from core.tokenizer.detokenizer import detokenizer
from core.tokenizer.prompts import ContextLengthError, PromptError
from core.tokenizer.refusals import bad_request, context_length_exceeded
from core.tokenizer.stop_strings import StopFilter
from core.tokenizer.vocabulary import Vocabulary

PROMPT_TAIL_TOKENS = 8  # what a windowed detokenizer wants to see of the prompt

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What this tokenizer instance is and what the engine it belongs to allows."""

    index: int
    epoch: int
    max_model_len: int  # prompt + output, tokens
    max_operations: int
    max_pending_bytes: int  # of prompts that wait to be encoded
    arena_tokens: int  # ids of all requests together
    block_size: int  # tokens in a KV block
    digest_secret: bytes = field(repr=False)


@dataclass(slots=True, eq=False)
class Operation:
    """One `Generate` of one http process; lives until each choice has ended."""

    peer: bytes
    request: Generate
    prompts: list[list[int]] = field(default_factory=list, repr=False)
    num_unencoded: int = 0
    choices: list[Choice] = field(default_factory=list)
    is_announced: bool = False  # `Queued` is out
    is_started: bool = False  # `Started` is out
    is_over: bool = False  # failed, cancelled, or every choice has ended
    demoted_to: TrafficClass | None = None  # a choice at least is served in this class

    @property
    def key(self) -> tuple[bytes, str]:
        """Operation ids are only unique within an http process."""
        return self.peer, self.request.operation_id

    def is_queued(self) -> bool:
        """Return whether the scheduler has accepted every choice."""
        return all(choice.state is not ChoiceState.SUBMITTED for choice in self.choices)

    def queued_message(self, vocabulary: Vocabulary) -> Queued:
        """Return what http is told once every choice is accepted."""
        request = self.request
        wants_ids = request.want_token_ids or request.echo
        return Queued(
            request.operation_id,
            prompt_token_ids=self.prompts if wants_ids else [],
            prompt_lens=[len(ids) for ids in self.prompts],
            prompt_texts=self._prompt_texts(vocabulary) if request.echo else [],
            traffic_class=request.traffic_class if self.demoted_to is None else self.demoted_to,
        )

    def _prompt_texts(self, vocabulary: Vocabulary) -> list[str]:
        return [
            prompt.text if isinstance(prompt, TextPrompt) else vocabulary.decode(ids)
            for prompt, ids in zip(self.request.prompts, self.prompts, strict=True)
        ]


def request_fault(request: Generate, vocabulary_size: int) -> Failed | None:
    """Return what is wrong with an operation apart from its prompts, or None."""
    too_many = len(request.stop) > MAX_STOP_STRINGS
    if too_many or not all(0 < len(stop) <= MAX_STOP_CHARACTERS for stop in request.stop):
        return bad_request(
            request.operation_id,
            f"At most {MAX_STOP_STRINGS} stop strings of 1 to {MAX_STOP_CHARACTERS} characters.",
            "stop",
        )
    named_ids = {
        "stop_token_ids": request.sampling.stop_token_ids,
        "logit_bias": tuple(token_id for token_id, _ in request.sampling.logit_bias),
    }
    for param, ids in named_ids.items():
        for token_id in ids:
            if not 0 <= token_id < vocabulary_size:
                return bad_request(
                    request.operation_id,
                    f"Token id {token_id} is not in the vocabulary of {vocabulary_size}.",
                    param,
                )
    return None


def prompt_fault(
    request: Generate, token_ids: list[int], error: Exception | None, max_model_len: int
) -> Failed | None:
    """Return what is wrong with one prompt after its encoding ended, or None."""
    operation_id = request.operation_id
    least = max(1, request.sampling.min_tokens)
    wanted = least if request.max_tokens is None else request.max_tokens
    if isinstance(error, PromptError):
        return bad_request(operation_id, error.message, error.param)
    num_tokens = error.num_tokens if isinstance(error, ContextLengthError) else len(token_ids)
    if num_tokens == 0:
        return bad_request(operation_id, "The prompt is empty.", "prompt")
    if num_tokens + wanted > max_model_len:
        return context_length_exceeded(operation_id, num_tokens, num_tokens + wanted, max_model_len)
    return None


def prompt_digests(facts: TokenizerFacts, request: Generate, token_ids: Ids) -> bytes:
    """Return the chained digests of the full blocks of a prompt, concatenated."""
    start = namespace_digest(facts.digest_secret, request.tenant, "")
    return join_digests(chain_digests(facts.digest_secret, start, token_ids, facts.block_size))


def make_choices(
    operation: Operation,
    facts: TokenizerFacts,
    vocabulary: Vocabulary,
    allocate: Callable[[int, Ids], int | None],
    next_request_id: Callable[[], int],
    now_ns: int,
) -> bool:
    """Give every choice a span and a request; False = the arena is full, `choices` is cut short.

    `allocate` takes a number of ids and the prompt, writes the prompt there and returns the start.
    """
    request = operation.request
    for prompt_index, prompt in enumerate(operation.prompts):
        token_ids = np.array(prompt, np.int32)
        draft = _draft(request, facts, token_ids, now_ns)
        for sample_index in range(request.n):
            span_start = allocate(draft.prompt_len + draft.max_tokens, token_ids)
            if span_start is None:
                return False
            submit = msgspec.structs.replace(
                draft,
                request_id=next_request_id(),
                choice=prompt_index * request.n + sample_index,
                span_start=span_start,
                sampling=replace(request.sampling, choice=sample_index),
            )
            operation.choices.append(make_choice(request, submit, prompt, vocabulary))
    return True


def _draft(request: Generate, facts: TokenizerFacts, token_ids: Ids, now_ns: int) -> Submit:
    """Return what all choices of a prompt have in common."""
    limit = facts.max_model_len - len(token_ids)
    return Submit(
        request_id=0,
        operation_id=request.operation_id,
        choice=0,
        tokenizer=facts.index,
        tokenizer_epoch=facts.epoch,
        tenant=request.tenant,
        traffic_class=request.traffic_class,
        span_start=0,
        prompt_len=len(token_ids),
        max_tokens=limit if request.max_tokens is None else request.max_tokens,
        arrival_ns=request.accepted_ns or now_ns,
        sampling=request.sampling,
        priority=request.priority,
        queue_deadline_ns=request.queue_deadline_ns,
        end_deadline_ns=request.end_deadline_ns,
        client_deadline=bool(request.queue_deadline_ns or request.end_deadline_ns),
        digests=prompt_digests(facts, request, token_ids),
    )


def make_choice(
    request: Generate, submit: Submit, prompt: list[int], vocabulary: Vocabulary
) -> Choice:
    """Return a choice that nothing has been delivered of."""
    return Choice(
        operation_id=request.operation_id,
        submit=submit,
        detokenizer=detokenizer(vocabulary, prompt[-PROMPT_TAIL_TOKENS:]),
        stop_filter=StopFilter(request.stop, request.include_stop_str),
        wants_token_ids=request.want_token_ids,
        wants_logprobs=request.want_logprobs,
    )
