"""What the scheduler says of our requests, record by record, turned into text and ends.

Owns: the reading of OUTPUT records. Never knows: rings or sockets. Records of requests that are
unknown or have ended (overrun after a stop, a cancel) are dropped; a record that does not follow
the one before raises SequenceGapError, and the loop resynchronizes.
"""

import math
from collections.abc import Callable

import msgspec

from core.messages.http import TokenLogprob
from core.request import FINISH_REASONS, FinishReason, RequestStatus
from core.scheduler.plan import OUTPUT, OutputBatch, OutputKind
from core.tenancy.classes import TrafficClass
from core.tokenizer.choice import Choice, ChoiceState, SequenceGapError
from core.tokenizer.operations import Operations
from core.tokenizer.refusals import engine_restarted, rejection_of
from core.tokenizer.requests import LiveRequest
from core.tokenizer.vocabulary import Vocabulary

LogprobEntry = tuple[int, float]


class Record(msgspec.Struct):
    """An OUTPUT record as Python numbers, fields in its order."""

    request_id: int
    kind: int
    token_id: int
    index: int
    logprob: float
    logprobs_start: int
    num_logprobs: int
    status: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    queue_ns: int
    reason: int
    retry_after_ms: int
    measured: float
    threshold: float
    traffic_class: int


assert Record.__struct_fields__ == OUTPUT.names


class OutputReader:
    """Applies output batches to the operations."""

    def __init__(self, operations: Operations) -> None:
        self.num_decoded_tokens = 0
        self._operations = operations
        self._vocabulary = operations.encoder.vocabulary
        self._touched: dict[LiveRequest, None] = {}  # in order: choices with something to send
        self._handlers: dict[int, Callable[[LiveRequest, Record, list[LogprobEntry]], None]] = {
            OutputKind.QUEUED: self._queued,
            OutputKind.STARTED: self._started,
            OutputKind.PROMPT_LOGPROBS: self._prompt_logprobs,
            OutputKind.TOKEN: self._token,
            OutputKind.FINISHED: self._finished,
        }

    def apply(self, batch: OutputBatch) -> None:
        """Take a batch; its arrays are not needed afterwards. Raises SequenceGapError."""
        logprobs: list[LogprobEntry] = batch.logprobs.tolist()
        for fields in batch.records.tolist():
            record = Record(*fields)
            if record.kind == OutputKind.RELEASED:
                self._released(record)
                continue
            live = self._operations.requests.get(record.request_id)
            if live is not None and live.choice.state is not ChoiceState.ENDED:
                self._handlers[record.kind](live, record, logprobs)

    def flush(self) -> None:
        """Send what the batches of this step have brought; one chunk a choice."""
        for live in self._touched:
            if live.choice.state is not ChoiceState.ENDED:
                self._operations.flush(live)
        self._touched.clear()

    def _queued(self, live: LiveRequest, record: Record, logprobs: list[LogprobEntry]) -> None:
        if live.choice.state is ChoiceState.SUBMITTED:
            live.choice.move_to(ChoiceState.QUEUED)
        if record.traffic_class != live.choice.submit.traffic_class:
            live.operation.demoted_to = TrafficClass(record.traffic_class)
        if live.operation.is_queued():
            self._operations.announce(live.operation)

    def _started(self, live: LiveRequest, record: Record, logprobs: list[LogprobEntry]) -> None:
        choice = live.choice
        if choice.state is not ChoiceState.RUNNING:
            choice.move_to(ChoiceState.RUNNING)
        if choice.num_output_tokens == 0:
            choice.num_cached_tokens = record.num_cached_tokens
        self._operations.start(live.operation, record.queue_ns)

    def _prompt_logprobs(
        self, live: LiveRequest, record: Record, logprobs: list[LogprobEntry]
    ) -> None:
        choice = live.choice
        width = 1 + choice.submit.sampling.num_prompt_logprobs
        entries = logprobs[record.logprobs_start : record.logprobs_start + record.num_logprobs]
        if record.index == 1 and choice.num_prompt_positions == 0:
            first_id = live.operation.prompts[choice.submit.choice // live.operation.request.n][0]
            choice.push_prompt_logprobs(0, [self._logprob(first_id, math.nan, [])])
        choice.push_prompt_logprobs(
            record.index,
            [
                self._logprob(*entries[start], entries[start + 1 : start + width])
                for start in range(0, len(entries), width)
            ],
        )
        self._touched[live] = None

    def _token(self, live: LiveRequest, record: Record, logprobs: list[LogprobEntry]) -> None:
        choice = live.choice
        self.num_decoded_tokens += 1
        if not 0 <= record.token_id < self._vocabulary.size:
            raise SequenceGapError(f"token id {record.token_id} is not in the vocabulary")
        entry = self._token_logprob(record, logprobs) if choice.wants_logprobs else None
        stop = choice.push_token(record.index, record.token_id, entry)
        if stop:
            self._operations.requests.stop(choice)
            self._operations.end(live, "stop", stop)
        else:
            self._touched[live] = None

    def _token_logprob(self, record: Record, logprobs: list[LogprobEntry]) -> TokenLogprob:
        start = record.logprobs_start
        best = logprobs[start : start + record.num_logprobs]
        return self._logprob(record.token_id, record.logprob, best)

    def _finished(self, live: LiveRequest, record: Record, logprobs: list[LogprobEntry]) -> None:
        choice = live.choice
        if record.num_output_tokens > choice.num_output_tokens:
            raise SequenceGapError(
                f"{record.num_output_tokens} tokens were generated, {choice.num_output_tokens} came"
            )
        choice.flush_text()
        rejection = rejection_of(
            choice.submit,
            record.reason,
            record.retry_after_ms,
            record.measured,
            record.threshold,
        )
        status = RequestStatus(record.status)
        if rejection is not None and status is not RequestStatus.FINISHED_ERROR:
            self._operations.refuse(live, rejection)
            return
        reason = FINISH_REASONS[status]
        self._operations.end(
            live, reason.name.lower(), _stop_token(choice, reason), rejection=rejection
        )

    def _released(self, record: Record) -> None:
        live = self._operations.requests.release(record.request_id)
        if live is not None and live.choice.state is not ChoiceState.ENDED:
            self._operations.end(live, "error", rejection=engine_restarted())

    def _logprob(self, token_id: int, logprob: float, best: list[LogprobEntry]) -> TokenLogprob:
        return TokenLogprob(
            token_id,
            logprob,
            self._vocabulary.token_text(token_id),
            self._vocabulary.all_bytes[token_id],
            [_named(self._vocabulary, *entry) for entry in best],
        )


def _named(vocabulary: Vocabulary, token_id: int, logprob: float) -> tuple[int, float, str, bytes]:
    return token_id, logprob, vocabulary.token_text(token_id), vocabulary.all_bytes[token_id]


def _stop_token(choice: Choice, reason: FinishReason) -> int | None:
    """Return the token id the client named that ended the choice; None for the model's own end."""
    last = choice.delivered[-1] if choice.delivered else -1
    if reason is FinishReason.STOP and last in choice.submit.sampling.stop_token_ids:
        return last
    return None
