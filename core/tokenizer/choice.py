"""One request from its submission to its last chunk: transcript, text, and what goes out next.

Owns: the ids delivered so far, the unfinished character, the held-back text, and the one transition
table of a choice. Never knows: channels, operations or other choices.

    SUBMITTED ─QUEUED─► QUEUED ─STARTED─► RUNNING ─► ENDED      the terminal chunk is out
        └───────────────────┴────── any ────────────► ENDED      also refused, cancelled, failed

A restarted scheduler knows nothing of a choice, so every state but ENDED falls back to SUBMITTED.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from core.errors import Rejection
from core.messages.http import Chunk, TokenLogprob
from core.messages.scheduler import Submit
from core.tokenizer.detokenizer import Detokenizer
from core.tokenizer.refusals import is_own_deadline
from core.tokenizer.stop_strings import StopFilter, StopMatch


class ChoiceState(IntEnum):
    """How far the engine has come with a choice."""

    SUBMITTED = 0
    QUEUED = 1
    RUNNING = 2
    ENDED = 3


_S = ChoiceState
TRANSITIONS: dict[ChoiceState, frozenset[ChoiceState]] = {
    _S.SUBMITTED: frozenset({_S.SUBMITTED, _S.QUEUED, _S.RUNNING, _S.ENDED}),
    _S.QUEUED: frozenset({_S.SUBMITTED, _S.RUNNING, _S.ENDED}),
    _S.RUNNING: frozenset({_S.SUBMITTED, _S.ENDED}),
    _S.ENDED: frozenset(),
}


class SequenceGapError(Exception):
    """A token came out of order: records before it were lost."""


@dataclass(slots=True)
class Pending:
    """What the next chunk of a choice will carry."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    def has_content(self) -> bool:
        """Return whether a chunk is worth sending."""
        return bool(self.texts or self.token_ids or self.logprobs or self.prompt_logprobs)


@dataclass(slots=True, eq=False)
class Choice:
    """One sequence of an operation; `submit` is what the scheduler was or will be told."""

    operation_id: str
    submit: Submit
    detokenizer: Detokenizer = field(repr=False)
    stop_filter: StopFilter = field(repr=False)
    wants_token_ids: bool
    wants_logprobs: bool
    state: ChoiceState = ChoiceState.SUBMITTED
    delivered: "array[int]" = field(default_factory=lambda: array("i"), repr=False)
    num_cached_tokens: int = 0
    num_prompt_positions: int = 0  # of which log-probabilities are out
    pending: Pending = field(default_factory=Pending, repr=False)

    @property
    def request_id(self) -> int:
        """The id under which the scheduler knows the choice now."""
        return self.submit.request_id

    @property
    def num_output_tokens(self) -> int:
        """Tokens delivered."""
        return len(self.delivered)

    def move_to(self, state: ChoiceState) -> None:
        """Change the state along TRANSITIONS; anything else is a bug."""
        assert state in TRANSITIONS[self.state], (self.request_id, self.state.name, state.name)
        self.state = state

    def push_token(self, index: int, token_id: int, logprob: TokenLogprob | None) -> str:
        """Take the token at output `index`; return the stop string that it completed, or "".

        A token that was delivered before is dropped. Raises SequenceGapError if one is missing.
        """
        if index < len(self.delivered):
            return ""
        if index > len(self.delivered):
            raise SequenceGapError(f"token {index} came after {len(self.delivered)} tokens")
        self.delivered.append(token_id)
        if self.wants_token_ids:
            self.pending.token_ids.append(token_id)
        if logprob is not None:
            self.pending.logprobs.append(logprob)
        return self._push_text(self.detokenizer.push(token_id))

    def push_prompt_logprobs(self, first_position: int, entries: Sequence[TokenLogprob]) -> None:
        """Take entries of prompt positions from `first_position` on, but for those already out."""
        new = entries[max(self.num_prompt_positions - first_position, 0) :]
        self.pending.prompt_logprobs.extend(new)
        self.num_prompt_positions = max(self.num_prompt_positions, first_position + len(entries))

    def flush_text(self) -> None:
        """Release what was held back: no token will follow."""
        if not self._push_text(self.detokenizer.finish()):
            self._add_text(self.stop_filter.finish())

    def take_chunk(self) -> Chunk | None:
        """Return what has gathered as a chunk, or None if there is nothing to show."""
        return self._chunk("", None, None) if self.pending.has_content() else None

    def end(
        self,
        finish_reason: str,
        stop_reason: str | int | None = None,
        rejection: Rejection | None = None,
    ) -> Chunk:
        """Return the one terminal chunk, with everything that has gathered and the usage."""
        self.move_to(ChoiceState.ENDED)
        return self._chunk(finish_reason, stop_reason, rejection)

    def _push_text(self, text: str) -> str:
        if not text:
            return ""
        may_stop = len(self.delivered) >= self.submit.sampling.min_tokens
        out = self.stop_filter.push(text, may_stop)
        if isinstance(out, StopMatch):
            self._add_text(out.text)
            return out.stop
        self._add_text(out)
        return ""

    def _add_text(self, text: str) -> None:
        if text:
            self.pending.texts.append(text)

    def _chunk(
        self, finish_reason: str, stop_reason: str | int | None, rejection: Rejection | None
    ) -> Chunk:
        pending, self.pending = self.pending, Pending()
        return Chunk(
            operation_id=self.operation_id,
            choice=self.submit.choice,
            text="".join(pending.texts),
            token_ids=pending.token_ids,
            logprobs=pending.logprobs,
            prompt_logprobs=pending.prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_prompt_tokens=self.submit.prompt_len,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=len(self.delivered),
            rejection=rejection,
            client_deadline=is_own_deadline(self.submit, rejection),
        )
