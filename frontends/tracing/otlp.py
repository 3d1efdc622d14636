"""Operations as OpenTelemetry spans, sent by OTLP over HTTP; needs the extra `otel`.

Owns: names and attributes (the conventions for generative AI, and `headrace.*`), how much may wait
to be sent, and that what is lost is counted. Never knows: when an operation ends. No text of a
prompt or an answer is ever in a span. A thread of the SDK sends; the loop only puts spans into its
queue, all of an operation at once.

    chat MODEL             from the arrival of the request to the end of the answer
      queue                until its first request got into a step
      prefill              until the first output
      decode               until the end

The SDK drops the oldest span when its queue is full and counts that nowhere. So we know how many
are under way and lose a whole operation before it would; spans that no collector takes are lost
too.
"""

import threading
from collections.abc import Callable, Sequence
from time import time_ns

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from core.config.tracing import TracingConfig
from core.errors import RejectionReason
from core.messages.tokenizer import ChatPrompt, Generate
from frontends.tracing.passage import Passage

MAX_WAITING_SPANS = 4096
MAX_BATCH_SPANS = 128  # encoding one holds the interpreter for milliseconds
SEND_EVERY_MS = 1000
SEND_TIMEOUT_S = 2.0  # with all its repetitions
CLOSE_TIMEOUT_S = 1.0
MAX_SPANS = 4  # of an operation

Attributes = dict[str, str | bool | int | float | list[str]]


class OtlpTracer:
    """Makes spans of operations and hands them to a thread that sends them."""

    def __init__(
        self,
        exporter: SpanExporter,
        config: TracingConfig,
        facts: dict[str, str],
        model: str,
        on_lost: Callable[[int], None],
    ) -> None:
        """Send through `exporter`."""
        self._model = model
        self._sending = CountedExporter(exporter, on_lost)
        self._on_lost = on_lost
        self._num_put = 0
        self._provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(config.sample_ratio),
            resource=Resource.create(facts),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._sending,
                max_queue_size=MAX_WAITING_SPANS,
                max_export_batch_size=MAX_BATCH_SPANS,
                schedule_delay_millis=SEND_EVERY_MS,
            )
        )
        self._tracer = self._provider.get_tracer("headrace")

    @classmethod
    def to_endpoint(
        cls,
        config: TracingConfig,
        facts: dict[str, str],
        model: str,
        on_lost: Callable[[int], None],
    ) -> "OtlpTracer":
        """Return one that sends to the configured endpoint; headers and certificates are those of
        the environment (OTEL_EXPORTER_OTLP_HEADERS and the like).
        """
        exporter = OTLPSpanExporter(endpoint=config.endpoint, timeout=SEND_TIMEOUT_S)
        return cls(exporter, config, facts, model, on_lost)

    def passed(
        self, passage: Passage, ended_ns: int, parent: bytes | None, state: bytes | None
    ) -> None:
        """Queue the spans of an operation; if there is no room for all of them, lose them."""
        epoch_ns = time_ns() - ended_ns  # of the monotonic clock, since 1970
        operation = "chat" if _is_chat(passage.message) else "text_completion"
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            trace_context(parent, state),
            kind=SpanKind.SERVER,
            attributes={**_asked(passage.message, self._model), "gen_ai.operation.name": operation},
            start_time=epoch_ns + passage.timer.accepted_ns,
        )
        if not span.is_recording():
            return
        if self._num_put + MAX_SPANS - self._sending.num_taken > MAX_WAITING_SPANS:
            self._on_lost(1 + len(passage.phases(ended_ns)))
            return
        context = set_span_in_context(span)
        for name, begin_ns, end_ns in passage.phases(ended_ns):
            phase = self._tracer.start_span(name, context, start_time=epoch_ns + begin_ns)
            phase.end(epoch_ns + end_ns)
            self._num_put += 1
        span.set_attributes(_served(passage))
        if passage.fault:
            span.set_status(Status(StatusCode.ERROR))
        span.end(epoch_ns + ended_ns)
        self._num_put += 1

    def close(self) -> None:
        """Send what is left; what a collector does not take in time is lost."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)


class CountedExporter(SpanExporter):
    """Stands between the SDK's queue and the collector: counts what leaves the one, and what the
    other does not take.
    """

    def __init__(self, exporter: SpanExporter, on_lost: Callable[[int], None]) -> None:
        self.num_taken = 0
        self._exporter = exporter
        self._on_lost = on_lost

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans that have left the queue."""
        self.num_taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                self._on_lost(len(spans))
        return result

    def shutdown(self) -> None:
        """End the connection."""
        self._exporter.shutdown()


def trace_context(parent: bytes | None, state: bytes | None) -> Context:
    """Return the trace that a client is in, an empty one if what it sent is none."""
    carrier = {"traceparent": parent, "tracestate": state}
    given = {name: value.decode("latin-1") for name, value in carrier.items() if value is not None}
    return TraceContextTextMapPropagator().extract(given, Context())


def _is_chat(message: Generate) -> bool:
    return isinstance(message.prompts[0], ChatPrompt)


def _asked(message: Generate, model: str) -> Attributes:
    asked: Attributes = {
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": model,
        "gen_ai.request.temperature": message.sampling.temperature,
        "gen_ai.request.top_p": message.sampling.top_p,
        "gen_ai.response.id": message.operation_id,
        "headrace.tenant": message.tenant,
    }
    if message.max_tokens is not None:
        asked["gen_ai.request.max_tokens"] = message.max_tokens
    if message.n > 1:
        asked["gen_ai.request.choice.count"] = message.n
    return asked


def _served(passage: Passage) -> Attributes:
    usage = passage.usage
    served: Attributes = {
        "gen_ai.request.stream": passage.is_stream,
        "gen_ai.response.finish_reasons": usage.finish_reasons,
        "gen_ai.usage.input_tokens": usage.num_prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.num_cached_tokens,
        "gen_ai.usage.output_tokens": usage.num_output_tokens,
        "headrace.class": passage.timer.traffic_class.name.lower(),
    }
    if passage.fault:
        served["error.type"] = passage.fault
    if passage.error is not None and passage.error.reason is not RejectionReason.NONE:
        served["headrace.reason"] = passage.error.reason.code
    return served
