"""An OTLP collector on loopback: takes what is exported by HTTP, and keeps it.

Owns: the port and what came. Never knows: who sends, or what the spans mean.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.processes.engine import wait_until


class Collector:
    """What has come; `status` is how the next exports are answered."""

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[bytes] = []
        self.endpoint = ""

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order in which they came."""
        return [
            span
            for body in self.bodies
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait_for(self, num_spans: int) -> dict[str, Span]:
        """Return the spans by name once there are so many."""
        wait_until(lambda: len(self.spans) >= num_spans, f"{num_spans} spans")
        assert len(self.spans) == num_spans
        return {span.name: span for span in self.spans}

    def find(self, name: str) -> Span:
        """Return the first span of a name once it has come."""
        wait_until(lambda: any(span.name == name for span in self.spans), f"a span {name}")
        return next(span for span in self.spans if span.name == name)


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Run a collector on a free port of loopback."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if collector.status == 200:
                collector.bodies.append(body)
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        thread = threading.Thread(target=server.serve_forever, name="collector")
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def attributes(span: Span) -> dict[str, object]:
    """Return the attributes of a span as plain values."""
    return {each.key: _plain(each.value) for each in span.attributes}


def _plain(value: object) -> object:
    kind = value.WhichOneof("value")  # type: ignore[attr-defined]
    found = getattr(value, kind)
    return [_plain(each) for each in found.values] if kind == "array_value" else found
