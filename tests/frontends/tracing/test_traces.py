"""Traces: a span for each operation with its phases, sent aside, without a word of any prompt."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from core.config.headrace import HeadraceConfig
from core.config.tracing import TracingConfig
from core.errors import ConfigError
from core.messages.tokenizer import Generate, TextPrompt
from core.runtime import serve
from core.sampling_params import SamplingParams
from core.tenancy.classes import TrafficClass
from frontends.http.telemetry import StreamTimer, Telemetry
from frontends.tracing.otlp import MAX_BATCH_SPANS, MAX_WAITING_SPANS, OtlpTracer
from frontends.tracing.passage import CLIENT_GONE, Passage
from tests.support.http.fake_engine import QUEUE_NS
from tests.support.http.http_rig import MODEL, HttpRig
from tests.support.processes.engine import wait_until
from tests.support.processes.trace_collector import Collector, attributes, running_collector

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
MINUTE_S = 60.0

Start = Callable[..., HttpRig]


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Give a collector that takes everything."""
    with running_collector() as collector:
        yield collector


def traced(start: Start, collector: Collector, **tracing: Any) -> HttpRig:
    """Return a server that traces to the collector."""
    return start(tracing=TracingConfig(endpoint=collector.endpoint, **tracing))


def chat(text: str, **more: object) -> dict[str, object]:
    """Return the body of a chat request."""
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_operation_is_a_span_of_the_clients_trace_with_its_phases(
    start: Start, collector: Collector, is_stream: bool
) -> None:
    """They follow each other without a gap, and end with the answer."""
    rig = traced(start, collector)
    body = chat("say abc", stream=is_stream, max_tokens=9, temperature=0.5)
    assert rig.post(CHAT, body, traceparent=f"00-{TRACE}-{PARENT}-01").status_code == 200
    spans = collector.wait_for(4)
    whole = spans[f"chat {MODEL}"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
    assert whole.kind == Span.SPAN_KIND_SERVER
    queue, prefill, decode = (spans[name] for name in ("queue", "prefill", "decode"))
    for phase in (queue, prefill, decode):
        assert (phase.trace_id, phase.parent_span_id) == (whole.trace_id, whole.span_id)
    assert queue.end_time_unix_nano - queue.start_time_unix_nano == QUEUE_NS
    assert queue.end_time_unix_nano == prefill.start_time_unix_nano
    assert prefill.end_time_unix_nano == decode.start_time_unix_nano
    assert decode.end_time_unix_nano == whole.end_time_unix_nano
    found = attributes(whole)
    assert len(str(found.pop("gen_ai.response.id"))) == 32
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.stream": is_stream,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.usage.output_tokens": 3,
        "headrace.tenant": "default",
        "headrace.class": "standard",
    }


def test_no_text_of_prompt_or_answer_is_sent(start: Start, collector: Collector) -> None:
    """Nor of what the client sent besides."""
    rig = traced(start, collector)
    rig.post(CHAT, chat("say canary", user="canary", stop=["canaryx"]), x_request_id="canary")
    collector.wait_for(4)
    assert b"canary" not in b"".join(collector.bodies)


def test_who_was_refused_has_a_span_with_the_reason(start: Start, collector: Collector) -> None:
    """At once, or when it was under way."""
    rig = traced(start, collector)
    assert rig.post(CHAT, chat("reject TENANT_RATE 100")).status_code == 429
    (refused,) = collector.wait_for(1).values()
    assert attributes(refused)["error.type"] == "tenant_rate"
    assert attributes(refused)["headrace.reason"] == "tenant_rate"
    assert refused.status.code == Status.STATUS_CODE_ERROR
    collector.bodies.clear()
    rig.post(CHAT, chat("late EXECUTOR_FAULT", stream=True))
    late = collector.find(f"chat {MODEL}")
    assert attributes(late)["headrace.reason"] == "executor_fault"


def test_who_left_has_a_span_that_says_so(start: Start, collector: Collector) -> None:
    """With the phases up to then."""
    rig = traced(start, collector)
    with rig.openai().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hold"}], stream=True
    ) as stream:
        next(iter(stream))
    spans = collector.wait_for(4)
    assert attributes(spans[f"chat {MODEL}"])["error.type"] == CLIENT_GONE


@pytest.mark.parametrize("flags", ["00", "01"])
def test_the_client_decides_whether_its_request_is_traced(
    start: Start, collector: Collector, flags: str
) -> None:
    """Whatever share of the others is; what is no trace context is passed over."""
    rig = traced(start, collector, sample_ratio=1.0 if flags == "00" else 0.0)
    rig.post("/v1/completions", {"prompt": "a"}, traceparent=f"00-{TRACE}-{PARENT}-{flags}")
    rig.post("/v1/completions", {"prompt": "a"}, traceparent="nonsense")
    spans = collector.wait_for(4)
    is_in_trace = spans[f"text_completion {MODEL}"].trace_id.hex() == TRACE
    assert is_in_trace == (flags == "01")


def test_spans_that_no_collector_takes_are_counted_and_harm_nobody(
    start: Start, collector: Collector
) -> None:
    """The answer does not wait for them."""
    collector.status = 400
    rig = traced(start, collector)
    assert rig.post(CHAT, chat("say abc")).status_code == 200
    assert int(rig.wait_for_page(lambda page: page["lost_spans"] > 0)["lost_spans"]) == 4
    assert rig.post(CHAT, chat("say abc")).status_code == 200


class StuckExporter(SpanExporter):
    """Takes one batch and is stuck with it until it is let go."""

    def __init__(self) -> None:
        self.exported: list[str] = []
        self.num_stuck = 0  # spans of the batch that it is stuck with
        self.is_stuck, self.may_go = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Be stuck."""
        self.num_stuck = self.num_stuck or len(spans)
        self.is_stuck.set()
        self.may_go.wait(MINUTE_S)
        self.exported += [span.name for span in spans]
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Have nothing to close."""


def operation(telemetry: Telemetry) -> Passage:
    """Return an operation that went well, with all its phases."""
    message = Generate(
        "op", "acme", TrafficClass.STANDARD, [TextPrompt("x")], 1, 5, SamplingParams()
    )
    timer = StreamTimer(telemetry, 1, "acme", TrafficClass.STANDARD)
    timer.first_ns, timer.ended_ns = 4, 5
    return Passage(message, timer, is_stream=False, queued_ns=2, started_ns=3)


def test_a_full_queue_loses_whole_operations_and_counts_their_spans() -> None:
    """What was queued before is sent all the same: each operation with all its phases."""
    telemetry, exporter = Telemetry(), StuckExporter()
    facts = {"service.name": "headrace"}
    tracer = OtlpTracer(exporter, TracingConfig(), facts, MODEL, telemetry.lose_spans)
    num_operations = 0
    while not telemetry.lost_spans:
        tracer.passed(operation(telemetry), 5, None, None)
        num_operations += 1
        if num_operations * 4 == MAX_BATCH_SPANS:
            assert exporter.is_stuck.wait(MINUTE_S)
    tracer.passed(operation(telemetry), 5, None, None)
    assert telemetry.lost_spans == 8
    num_kept = 4 * (num_operations - 1)
    assert num_kept == (MAX_WAITING_SPANS + exporter.num_stuck) // 4 * 4
    exporter.may_go.set()
    tracer.close()  # waits for a second; on a busy machine the rest is sent after it
    wait_until(lambda: len(exporter.exported) >= num_kept, "the spans that were queued")
    assert len(exporter.exported) == num_kept
    assert len(set(map(exporter.exported.count, exporter.exported))) == 1


HYGIENE = """
import sys
sys.modules["opentelemetry"] = None
from core.errors import ConfigError
from core.config.tracing import TracingConfig
from frontends.http.wiring import open_tracer
open_tracer(TracingConfig(), {}, "m", print)
try:
    open_tracer(TracingConfig(endpoint="http://127.0.0.1:4318/v1/traces"), {}, "m", print)
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_the_extra_only_who_asks_for_traces_is_told() -> None:
    """With the name of the extra."""
    told = subprocess.run(
        [sys.executable, "-c", HYGIENE], capture_output=True, text=True, check=True
    )
    assert "install the extra `otel`" in told.stdout
    assert told.stdout.count("\n") == 1


def test_an_engine_that_lacks_the_extra_does_not_load_a_model_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told as soon as the configuration has been read."""
    monkeypatch.setattr(serve, "TRACES_PACKAGE", "no_such_package")
    serve.check_extras(HeadraceConfig())
    asked = HeadraceConfig(tracing=TracingConfig(endpoint="http://127.0.0.1:4318/v1/traces"))
    with pytest.raises(ConfigError, match="install the extra `otel`"):
        serve.check_extras(asked)


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://x/v1/traces", "http://", "http://["])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    """Anything else is a fault of the configuration."""
    with pytest.raises(ConfigError, match=r"tracing\.endpoint = .* is no URL"):
        HeadraceConfig(tracing=TracingConfig(endpoint=endpoint)).check()
