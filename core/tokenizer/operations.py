"""All live operations of a tokenizer process: how each begins, and the one end it has.

Owns: the table of operations, the checks before a request exists, and what http is told. Never
knows: sockets, rings, threads, or clocks (`now_ns` is passed in). The process loop feeds it
messages and epochs and runs the encode jobs it hands out; `core.tokenizer.outputs` feeds it what
the scheduler says.

    Generate ─► encode jobs ─► checks ─► span, Submit ─► Queued ─► Started ─► Chunks … last chunk
                    └─ Failed at any point instead of what would follow; nothing comes after it

Bounds: `max_operations` operations, `max_pending_bytes` of prompts not encoded yet, the arena for
requests, MAX_HTTP_MESSAGES for a process that does not read. Full is always TOKENIZER_BUSY.
"""

from collections.abc import Callable

from core.arrival_limits import is_paused
from core.errors import Rejection
from core.messages.http import Detokenized, Failed, Started, Tokenized
from core.messages.tokenizer import Cancel, Detokenize, Generate, Tokenize, ToTokenizer
from core.tenancy.tenancy import Tenancy
from core.tokenizer.choice import ChoiceState
from core.tokenizer.intake import Encoding, Intake
from core.tokenizer.operation import Operation, TokenizerFacts, prompt_fault, request_fault
from core.tokenizer.outbox import HttpOutbox
from core.tokenizer.prompts import ContextLengthError, PromptEncoder, PromptError, checked_ids
from core.tokenizer.refusals import (
    bad_request,
    context_length_exceeded,
    engine_restarted,
    is_own_deadline,
    refused,
    tokenizer_busy,
)
from core.tokenizer.requests import LiveRequest, LiveRequests, SpanStore

MAX_HTTP_MESSAGES = 4096
MIN_DETOKENIZE_IDS = 131_072  # always allowed; more if the context is longer


class Operations:
    """The state machine of the tokenizer process."""

    def __init__(self, facts: TokenizerFacts, encoder: PromptEncoder, spans: SpanStore) -> None:
        self.facts = facts
        self.encoder = encoder
        self.intake = Intake(facts.max_operations, facts.max_pending_bytes)
        self.requests = LiveRequests(facts, spans)
        self.to_http = HttpOutbox(MAX_HTTP_MESSAGES)
        self.tenancy = Tenancy()  # who is paused; the loop keeps it new
        self.num_encoded_tokens = 0
        self.rejections: dict[int, int] = {}  # by RejectionReason, those made here
        self._operations: dict[tuple[bytes, str], Operation] = {}

    def __len__(self) -> int:
        return len(self._operations)

    def accept(self, peer: bytes, message: ToTokenizer) -> None:
        """Take a message of an http process."""
        match message:
            case Generate():
                self._accept_generate(peer, message)
            case Cancel():
                operation = self._operations.get((peer, message.operation_id))
                if operation is not None:
                    self.drop(operation, message.closed_ns)
            case Tokenize():
                self._accept_tokenize(peer, message)
            case Detokenize():
                self._detokenize(peer, message)

    def encoded(self, encoding: Encoding, now_ns: int) -> None:
        """Take a prompt whose job is done, or that nobody wants any more."""
        self.intake.done(encoding)
        self.num_encoded_tokens += len(encoding.job.token_ids)
        if encoding.operation is None:
            self._answer_tokenize(encoding)
        elif not encoding.operation.is_over:
            self._take_prompt(encoding.operation, encoding, now_ns)

    def announce(self, operation: Operation) -> None:
        """Say once that the scheduler has accepted the operation."""
        if not operation.is_announced:
            operation.is_announced = True
            self.to_http.add(operation.peer, operation.queued_message(self.encoder.vocabulary))

    def start(self, operation: Operation, queue_ns: int) -> None:
        """Say once that a request of the operation has got into a step."""
        self.announce(operation)
        if not operation.is_started:
            operation.is_started = True
            self.to_http.add(operation.peer, Started(operation.request.operation_id, queue_ns))

    def flush(self, live: LiveRequest) -> None:
        """Send what has gathered of a choice."""
        chunk = live.choice.take_chunk()
        if chunk is not None:
            self.to_http.add_chunk(live.operation.peer, chunk)

    def end(
        self,
        live: LiveRequest,
        finish_reason: str,
        stop_reason: str | int | None = None,
        rejection: Rejection | None = None,
    ) -> None:
        """Send the last chunk of a choice; with the last choice the operation is over."""
        operation = live.operation
        chunk = live.choice.end(finish_reason, stop_reason, rejection)
        self.to_http.add_chunk(operation.peer, chunk)
        if all(choice.state is ChoiceState.ENDED for choice in operation.choices):
            self._forget(operation)

    def refuse(self, live: LiveRequest, rejection: Rejection) -> None:
        """End a choice that the engine refuses: the whole operation, if nothing of it is out."""
        operation, choice = live.operation, live.choice
        if operation.is_started:
            self.end(live, "abort", rejection=rejection)
            return
        choice.move_to(ChoiceState.ENDED)
        deadline_is_own = is_own_deadline(choice.submit, rejection)
        self.fail(operation, refused(operation.request.operation_id, rejection, deadline_is_own))

    def fail(self, operation: Operation, failed: Failed) -> None:
        """End a whole operation without further output."""
        self._send_failed(operation.peer, failed)
        self.drop(operation)

    def drop(self, operation: Operation, closed_ns: int = 0) -> None:
        """End a whole operation silently: its client is gone, or has been told."""
        for choice in operation.choices:
            if choice.state is not ChoiceState.ENDED:
                choice.move_to(ChoiceState.ENDED)
                self.requests.abort(choice, closed_ns)
        self._forget(operation)

    def drop_peers(self, is_gone: Callable[[bytes], bool]) -> None:
        """Cancel every operation of the http processes that are gone."""
        for operation in list(self._operations.values()):
            if is_gone(operation.peer):
                self.drop(operation)
        for peer in self.to_http.peers():
            if is_gone(peer):
                self.to_http.forget(peer)

    def scheduler_restarted(self) -> None:
        """Submit everything again to a new scheduler."""
        self.requests.resubmit_all()

    def fail_all(self) -> None:
        """End everything: the scheduler will not come back."""
        for operation in list(self._operations.values()):
            self._fail_restarted(operation)

    def outputs_lost(self, now_ns: int) -> None:
        """Records of unknown requests were lost: go on with all of them under new names."""
        for live in self.requests.replace_all(now_ns):
            self.end(live, "error", rejection=engine_restarted())

    def tick(self, now_ns: int) -> None:
        """Do what is due."""
        self.requests.expire(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when `tick` has something to do; None = never."""
        return self.requests.next_timer_ns()

    def _fail_restarted(self, operation: Operation) -> None:
        if operation.is_started:
            for choice in operation.choices:
                if choice.state is not ChoiceState.ENDED:
                    self.end(LiveRequest(operation, choice), "error", rejection=engine_restarted())
        else:
            self.fail(operation, refused(operation.request.operation_id, engine_restarted()))

    def _forget(self, operation: Operation) -> None:
        operation.is_over = True
        self._operations.pop(operation.key, None)

    def _send_failed(self, peer: bytes, failed: Failed) -> None:
        if failed.rejection is not None:
            reason = int(failed.rejection.reason)
            self.rejections[reason] = self.rejections.get(reason, 0) + 1
        self.to_http.add(peer, failed)

    def _accept_generate(self, peer: bytes, request: Generate) -> None:
        operation = Operation(peer, request)
        jobs = [self.encoder.start(prompt) for prompt in request.prompts]
        fault = (
            self._pause_fault(request)
            or self._room_fault(request.operation_id, len(jobs), sum(job.num_bytes for job in jobs))
            or request_fault(request, self.encoder.vocabulary.size)
            or self._identity_fault(operation)
        )
        if fault is not None:
            self._send_failed(peer, fault)
            return
        self._operations[operation.key] = operation
        operation.prompts = [[] for _ in jobs]
        operation.num_unencoded = len(jobs)
        for index, job in enumerate(jobs):
            self.intake.add(
                Encoding(peer, request.operation_id, request.tenant, job, operation, index)
            )

    def _accept_tokenize(self, peer: bytes, request: Tokenize) -> None:
        job = self.encoder.start(request.prompt)
        fault = self._room_fault(request.operation_id, 1, job.num_bytes)
        if fault is not None:
            self._send_failed(peer, fault)
            return
        self.intake.add(Encoding(peer, request.operation_id, request.tenant, job))

    def _pause_fault(self, request: Generate) -> Failed | None:
        """Refuse what http let through before it knew of a pause."""
        rejection = is_paused(self.tenancy, request.tenant, request.traffic_class)
        return None if rejection is None else refused(request.operation_id, rejection)

    def _room_fault(self, operation_id: str, num_prompts: int, num_bytes: int) -> Failed | None:
        num_operations, limit = len(self._operations), self.facts.max_operations
        if num_operations >= limit:
            knob = "tokenizer.max_operations"
            return tokenizer_busy(operation_id, knob, num_operations, limit)
        if not self.intake.has_room(num_prompts, num_bytes):
            waiting = self.intake.num_bytes + num_bytes
            knob = "tokenizer.pending_bytes"
            return tokenizer_busy(operation_id, knob, waiting, self.intake.max_bytes)
        return None

    def _identity_fault(self, operation: Operation) -> Failed | None:
        operation_id = operation.request.operation_id
        if operation.key in self._operations:
            return bad_request(operation_id, f"Operation {operation_id} is running already.", "id")
        if not operation.request.prompts:
            return bad_request(operation_id, "There is no prompt.", "prompt")
        return None

    def _take_prompt(self, operation: Operation, encoding: Encoding, now_ns: int) -> None:
        job, limit = encoding.job, self.facts.max_model_len
        fault = prompt_fault(operation.request, job.token_ids, job.error, limit)
        if fault is not None:
            self.fail(operation, fault)
            return
        operation.prompts[encoding.prompt_index] = job.token_ids
        operation.num_unencoded -= 1
        if operation.num_unencoded > 0:
            return
        if not self.requests.submit(operation, self.encoder.vocabulary, now_ns):
            self.fail(operation, self._arena_full(operation))

    def _arena_full(self, operation: Operation) -> Failed:
        operation_id = operation.request.operation_id
        arena = self.facts.arena_tokens
        return tokenizer_busy(operation_id, "tokenizer.arena_tokens", arena, arena)

    def _answer_tokenize(self, encoding: Encoding) -> None:
        job, vocabulary = encoding.job, self.encoder.vocabulary
        operation_id = encoding.operation_id
        if isinstance(job.error, PromptError):
            fault = bad_request(operation_id, job.error.message, job.error.param)
            self._send_failed(encoding.peer, fault)
            return
        if isinstance(job.error, ContextLengthError):
            num_tokens, limit = job.error.num_tokens, self.facts.max_model_len
            fault = context_length_exceeded(operation_id, num_tokens, num_tokens, limit)
            self._send_failed(encoding.peer, fault)
            return
        texts = [vocabulary.token_text(token_id) for token_id in job.token_ids]
        self.to_http.add(encoding.peer, Tokenized(operation_id, job.token_ids, texts))

    def _detokenize(self, peer: bytes, request: Detokenize) -> None:
        vocabulary = self.encoder.vocabulary
        limit = max(self.facts.max_model_len, MIN_DETOKENIZE_IDS)
        try:
            if len(request.token_ids) > limit:
                raise PromptError(f"At most {limit} token ids can be decoded at once.", "tokens")
            ids = checked_ids(request.token_ids, vocabulary.size)
        except PromptError as error:
            self._send_failed(peer, bad_request(request.operation_id, error.message, "tokens"))
            return
        self.to_http.add(peer, Detokenized(request.operation_id, vocabulary.decode(ids)))
