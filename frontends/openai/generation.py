"""From an operation's events to an answer, streamed or whole; the same for chat and completions.

Owns: when headers go out, what a late failure looks like, the order of events, the three
client-side times. Never knows: JSON shapes (a `Renderer` has them) or how the engine works.

    verdict   hold the headers until the operation starts or fails, at most `verdict_hold_s`
    queued    after that, a comment every `comment_s` until the first output
    output    written in the turn in which it comes; one write for all that came while the reader
              was slow
    end       usage if asked for, [DONE]; or an error event, and the connection is closed
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from core.clock import NS_PER_MS, NS_PER_S, Clock
from core.messages.http import Chunk, Failed, Queued, Started
from core.messages.tokenizer import Generate
from frontends.engine_client import EngineClient
from frontends.http.application.exchange import EVENT_STREAM, Exchange
from frontends.http.application.sse import DONE, KEEP_ALIVE, event
from frontends.http.errors import ApiError, Header, from_end, from_failure
from frontends.http.gate.doorstep import Doorstep
from frontends.http.telemetry import StreamTimer
from frontends.openai.answers import Choice, Usage, choices_of
from frontends.operation import Event, Operation
from frontends.tracing.passage import Passage
from frontends.tracing.tracer import Tracer

COMMENT_S = 5.0
STREAM_HEADERS: list[Header] = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class Renderer(Protocol):
    """The JSON of one endpoint for one operation."""

    def queued(self, queued: Queued) -> None:
        """Note what the engine made of the prompts."""
        ...

    def opening(self) -> bytes:
        """Return the events before any output."""
        ...

    def chunk(self, chunk: Chunk) -> bytes:
        """Return the event of a chunk; empty if it has nothing to show yet."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """Return the event with the usage; empty if it was not asked for."""
        ...

    def body(self, choices: Sequence[Choice], usage: Usage) -> dict[str, object]:
        """Return a whole answer."""
        ...


@dataclass(frozen=True, slots=True)
class Generator:
    """Runs operations and answers with what they bring."""

    client: EngineClient
    doorstep: Doorstep
    clock: Clock
    wall_clock_s: Callable[[], float]
    tracer: Tracer
    verdict_hold_s: float
    comment_s: float = COMMENT_S

    def created_s(self) -> int:
        """Return the Unix time for an answer's `created`, s."""
        return int(self.wall_clock_s())

    async def answer(
        self, exchange: Exchange, message: Generate, renderer: Renderer, *, is_stream: bool
    ) -> None:
        """Answer with the output of `message`; raises ApiError while a status can be sent."""
        exchange.tenant_headers = partial(self.doorstep.headers, message.tenant)
        exchange.telemetry.count_request(message.tenant)
        timer = StreamTimer(
            exchange.telemetry, exchange.accepted_ns, message.tenant, message.traffic_class
        )
        passage = Passage(message, timer, is_stream)
        try:
            self.doorstep.check(message)
            exchange.telemetry.choices.observe(message.n)
            await self._answer(exchange, passage, renderer)
        except ApiError as error:
            passage.error = error
            raise
        finally:
            parent, state = exchange.header(b"traceparent"), exchange.header(b"tracestate")
            self.tracer.passed(passage, self.clock.now_ns(), parent, state)
            timer.close()

    async def _answer(self, exchange: Exchange, passage: Passage, renderer: Renderer) -> None:
        """Have the operation run and answer with what it brings; raises ApiError."""
        with self.client.generate(passage.message) as operation:
            operation.on_overflow = exchange.cut_slow_reader
            exchange.connection.watch(operation.cancel)
            if passage.is_stream:
                await Stream(self, exchange, operation, renderer, passage).run()
            else:
                await self._whole(exchange, operation, renderer, passage)

    async def _whole(
        self, exchange: Exchange, operation: Operation, renderer: Renderer, passage: Passage
    ) -> None:
        """Collect everything, then send one answer."""
        choices = choices_of(passage.message)
        timer, usage = passage.timer, passage.usage
        headers: list[Header] = []
        num_open = len(choices)
        while num_open:
            for got in await operation.next_events():
                error = self.error_of(got)
                if error is not None:
                    raise error
                if isinstance(got, Chunk):
                    choices[got.choice].add(got)
                    usage.add(got)
                    timer.output(got, self.clock.now_ns())
                    num_open -= bool(got.finish_reason)
                elif isinstance(got, Queued | Started):
                    passage.note(got, self.clock.now_ns())
                    if isinstance(got, Started):
                        headers = [queue_header(got)]
                    else:
                        exchange.traffic_class = got.traffic_class
                        renderer.queued(got)
        await exchange.respond_json(renderer.body(choices, usage), headers=headers)
        timer.end(self.clock.now_ns())

    def error_of(self, got: Event) -> ApiError | None:
        """Return what to tell of an event that ends its request badly; None for others."""
        if isinstance(got, Chunk):
            return from_end(got) if got.finish_reason else None
        return from_failure(got) if isinstance(got, Failed) else None


class Stream:
    """One streamed answer."""

    def __init__(
        self,
        generator: Generator,
        exchange: Exchange,
        operation: Operation,
        renderer: Renderer,
        passage: Passage,
    ) -> None:
        self._generator = generator
        self._exchange = exchange
        self._operation = operation
        self._renderer = renderer
        self._passage = passage
        self._usage = passage.usage
        self._timer = passage.timer
        self._num_open = passage.num_choices
        self._is_open = False
        self._has_output = False
        self._failure: ApiError | None = None

    async def run(self) -> None:
        """Send everything; raises ApiError if it fails before the headers."""
        telemetry = self._exchange.telemetry
        telemetry.num_streams += 1
        try:
            events = await self._verdict()
            await self._start(events)
            while await self._send(events):
                wait_s = None if self._has_output else self._generator.comment_s
                self._operation.sink = self._send_at_once if self._has_output else None
                events = await self._operation.next_events(wait_s)
        finally:
            telemetry.num_streams -= 1

    async def _verdict(self) -> list[Event]:
        """Return the first events, up to the one that says whether the operation is served."""
        clock = self._generator.clock
        until_ns = clock.now_ns() + round(self._generator.verdict_hold_s * NS_PER_S)
        events: list[Event] = []
        while not any(isinstance(got, Started | Chunk) for got in events):
            rest_s = (until_ns - clock.now_ns()) / NS_PER_S
            if rest_s <= 0:
                break
            events += await self._operation.next_events(rest_s)
            for got in events:
                error = self._generator.error_of(got)
                if error is not None:
                    raise error
                self._note(got)
        return events

    async def _start(self, events: list[Event]) -> None:
        """Send the headers."""
        for got in events:
            if isinstance(got, Queued):
                self._exchange.traffic_class = got.traffic_class
        started = [queue_header(got) for got in events if isinstance(got, Started)]
        await self._exchange.start(200, EVENT_STREAM, [*STREAM_HEADERS, *started])

    async def _send(self, events: list[Event]) -> bool:
        """Send what `events` say in one write; False = that was the last."""
        parts = [self._bytes_of(got) for got in events]
        is_last = self._failure is not None or self._num_open == 0
        if is_last:
            parts.append(self._ending())
        elif not events or not self._is_open:
            parts.append(KEEP_ALIVE)
        data = b"".join(parts)
        if data:
            await self._exchange.write(data, more=not is_last)
        now_ns = self._generator.clock.now_ns()
        for got in events:
            if isinstance(got, Chunk) and self._generator.error_of(got) is None:
                self._timer.output(got, now_ns)
        if is_last and self._failure is None:
            self._timer.end(now_ns)
        return not is_last

    def _send_at_once(self, chunk: Chunk) -> bool:
        """Write a chunk from outside this task; False = the task must, since it can wait.

        What goes wrong here happens to the task again, and to this request alone.
        """
        connection = self._exchange.connection
        if chunk.prompt_logprobs or not connection.takes_parts:
            return False
        try:
            data = self._renderer.chunk(chunk)
        except Exception:  # noqa: BLE001 the task renders it again, and fails by it
            return False
        if data:
            connection.write_part(data)
        self._timer.output(chunk, self._generator.clock.now_ns())
        return True

    def _bytes_of(self, got: Event) -> bytes:
        if self._failure is not None:
            return b""
        self._failure = self._passage.error = self._generator.error_of(got)
        if isinstance(got, Chunk):
            return self._opening() + self._output(got)
        self._note(got)
        if isinstance(got, Queued):
            self._renderer.queued(got)
        return self._opening() if isinstance(got, Started) else b""

    def _note(self, got: Event) -> None:
        if isinstance(got, Queued | Started):
            self._passage.note(got, self._generator.clock.now_ns())

    def _opening(self) -> bytes:
        if self._is_open:
            return b""
        self._is_open = True
        return self._renderer.opening()

    def _output(self, chunk: Chunk) -> bytes:
        """Return a chunk's event; of a chunk that ends badly, what it still brings."""
        self._has_output = True
        if self._failure is not None:
            return self._renderer.chunk(replace(chunk, finish_reason="")) if chunk.text else b""
        self._num_open -= bool(chunk.finish_reason)
        self._usage.add(chunk)
        return self._renderer.chunk(chunk)

    def _ending(self) -> bytes:
        """Return the last bytes: usage and [DONE], or the error."""
        if self._failure is None:
            return self._renderer.usage(self._usage) + DONE
        self._exchange.count_rejection(self._failure)
        self._exchange.connection.close_soon()
        return event(self._failure.body())


def queue_header(started: Started) -> Header:
    """Return the header that says how long the request has queued."""
    return b"x-headrace-queue-ms", str(started.queue_ns // NS_PER_MS).encode()
