"""The requests that the scheduler holds for us: their spans, and what it still has to be told.

Owns: the table of live requests, the arena, and every message to the scheduler, in order. Never
knows: text, http, or clocks (`now_ns` is passed in).

A span is taken from before `Submit` until RELEASED says that no plan names it any more. Two things
may keep RELEASED from coming: the scheduler restarts (it knows nothing then, so everything is
submitted again from the tokens delivered, and spans of ended requests are free at once), or records
are lost (then requests go on under new ids in new spans, and the old spans are kept until RELEASED
after all, or until no step can possibly name them).

    to the scheduler     Submit, then at most one Stop or one Abort; so the outbox is bounded by
                         the arena, which bounds the requests
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from core.clock import NS_PER_S
from core.messages.scheduler import Abort, Stop, Submit
from core.tokenizer.choice import Choice, ChoiceState
from core.tokenizer.operation import Ids, Operation, TokenizerFacts, make_choices
from core.tokenizer.vocabulary import Vocabulary

COUNTER_BITS = 40
EPOCH_BITS = 16
ABANDONED_SPAN_NS = 60 * NS_PER_S  # far longer than any step that may still name the span


class SpanStore(Protocol):
    """Where token ids live (`ipc.spans.SpanArena`)."""

    def allocate(self, num_ids: int) -> int | None:
        """Return the start of a new span, or None if there is no room."""
        ...

    def free(self, start: int) -> None:
        """Give a span back."""
        ...

    def view(self, start: int, num_ids: int) -> Ids:
        """Return ids [start, start + num_ids)."""
        ...


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request whose span is taken; its choice may have ended before the scheduler let go."""

    operation: Operation
    choice: Choice


@dataclass(frozen=True, slots=True)
class AbandonedSpan:
    """A span that a request left behind; `free_after_ns` is for when RELEASED was lost."""

    start: int
    free_after_ns: int


class LiveRequests:
    """All requests of this tokenizer instance, in the order of their submission."""

    def __init__(self, facts: TokenizerFacts, spans: SpanStore) -> None:
        assert facts.epoch < 2**EPOCH_BITS, facts.epoch
        self.to_scheduler: deque[Submit | Abort | Stop] = deque()
        self.num_resubmitted = 0
        self._facts = facts
        self._spans = spans
        self._requests: dict[int, LiveRequest] = {}
        self._abandoned: dict[int, AbandonedSpan] = {}
        self._counter = 0

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: int) -> LiveRequest | None:
        """Return the live request of that id."""
        return self._requests.get(request_id)

    def submit(self, operation: Operation, vocabulary: Vocabulary, now_ns: int) -> bool:
        """Make and submit the choices of an encoded operation; False = the arena is full."""
        if not make_choices(
            operation, self._facts, vocabulary, self._allocate, self._next_id, now_ns
        ):
            for choice in operation.choices:
                self._spans.free(choice.submit.span_start)
            operation.choices.clear()
            return False
        for choice in operation.choices:
            self._requests[choice.request_id] = LiveRequest(operation, choice)
            self.to_scheduler.append(choice.submit)
        return True

    def stop(self, choice: Choice) -> None:
        """Tell the scheduler that the delivered tokens are all that is wanted."""
        self.to_scheduler.append(Stop(choice.request_id, choice.num_output_tokens))

    def abort(self, choice: Choice, closed_ns: int = 0) -> None:
        """Tell the scheduler that nobody wants the request any more."""
        self.to_scheduler.append(Abort(choice.request_id, closed_ns))

    def release(self, request_id: int) -> LiveRequest | None:
        """Free the span of a request that the scheduler has let go of, and forget it."""
        abandoned = self._abandoned.pop(request_id, None)
        if abandoned is not None:
            self._spans.free(abandoned.start)
            return None
        live = self._requests.pop(request_id, None)
        if live is not None:
            self._spans.free(live.choice.submit.span_start)
        return live

    def resubmit_all(self) -> None:
        """Submit everything again to a scheduler that has just started and knows nothing."""
        self.to_scheduler.clear()
        for request_id in list(self._abandoned):
            self.release(request_id)
        for request_id, live in list(self._requests.items()):
            if live.choice.state is ChoiceState.ENDED:
                self.release(request_id)
            else:
                self._resubmit(live.choice, live.choice.submit)

    def replace_all(self, now_ns: int) -> list[LiveRequest]:
        """Go on under new ids, because records of the old ones were lost.

        Returns the requests for which there was no room; their old ids are aborted as well.
        """
        homeless = []
        requests, self._requests = self._requests, {}
        for request_id, live in requests.items():
            old = live.choice.submit
            self._abandoned[request_id] = AbandonedSpan(old.span_start, now_ns + ABANDONED_SPAN_NS)
            self.to_scheduler.append(Abort(request_id))
            if live.choice.state is ChoiceState.ENDED:
                continue
            start = self._allocate(
                old.prompt_len + old.max_tokens, self._spans.view(old.span_start, old.prompt_len)
            )
            if start is None:
                homeless.append(live)
                continue
            moved = msgspec.structs.replace(old, request_id=self._next_id(), span_start=start)
            self._requests[moved.request_id] = live
            self._resubmit(live.choice, moved)
        return homeless

    def expire(self, now_ns: int) -> None:
        """Free abandoned spans whose RELEASED must have been lost."""
        for request_id, span in list(self._abandoned.items()):
            if span.free_after_ns <= now_ns:
                self.release(request_id)

    def next_timer_ns(self) -> int | None:
        """Return when `expire` has something to do, or None."""
        return min((span.free_after_ns for span in self._abandoned.values()), default=None)

    def _resubmit(self, choice: Choice, submit: Submit) -> None:
        """Submit from the delivered tokens on; they are written anew, for no one owns the span."""
        num_delivered = choice.num_output_tokens
        end = submit.prompt_len + num_delivered
        self._spans.view(submit.span_start, end)[submit.prompt_len :] = np.frombuffer(
            choice.delivered, np.int32
        )
        choice.submit = msgspec.structs.replace(
            submit,
            resume_from=num_delivered,
            was_queued=submit.was_queued or choice.state is not ChoiceState.SUBMITTED,
            was_started=submit.was_started or choice.state is ChoiceState.RUNNING,
        )
        choice.move_to(ChoiceState.SUBMITTED)
        self.to_scheduler.append(choice.submit)
        self.num_resubmitted += 1

    def _allocate(self, num_ids: int, prompt: Ids) -> int | None:
        start = self._spans.allocate(num_ids)
        if start is not None:
            self._spans.view(start, len(prompt))[:] = prompt
        return start

    def _next_id(self) -> int:
        self._counter += 1
        assert self._counter < 2**COUNTER_BITS
        prefix = self._facts.index << EPOCH_BITS | self._facts.epoch
        return prefix << COUNTER_BITS | self._counter
