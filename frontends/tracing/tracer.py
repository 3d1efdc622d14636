"""Who is told of each operation that has ended, so that a trace can be made of it.

Owns: the interface, and which tracer the configuration asks for. Never knows: how a trace is made
or sent (`frontends.tracing.otlp`), which is loaded only if somebody asks for traces. Nothing of it
is on the way of a token.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from core.config.tracing import TracingConfig
from core.errors import ConfigError
from frontends.tracing.passage import Passage

OTLP = "frontends.tracing.otlp"


class Tracer(Protocol):
    """Takes operations; never waits."""

    def passed(
        self, passage: Passage, ended_ns: int, parent: bytes | None, state: bytes | None
    ) -> None:
        """Take an operation that has ended; its client sent `parent` and `state` (W3C trace
        context: `traceparent`, `tracestate`).
        """
        ...

    def close(self) -> None:
        """Send what is left, within a bound; this waits."""
        ...


class NoTracer:
    """Where no traces are asked for."""

    def passed(
        self, passage: Passage, ended_ns: int, parent: bytes | None, state: bytes | None
    ) -> None:
        """Forget it."""

    def close(self) -> None:
        """Have nothing to send."""


def open_tracer(
    config: TracingConfig, facts: dict[str, str], model: str, on_lost: Callable[[int], None]
) -> Tracer:
    """Return who traces the requests of `model`; `facts` are of this engine, in OpenTelemetry's
    names, and `on_lost` is told, in any thread, how many spans nobody will see. Raises ConfigError
    if what is needed is not installed.
    """
    if not config.endpoint:
        return NoTracer()
    try:
        module = import_module(OTLP)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracing.endpoint is set and {error.name} is not installed: install the extra `otel`"
            " (pip install 'headrace[otel]')"
        ) from error
    tracer: Tracer = module.OtlpTracer.to_endpoint(config, facts, model, on_lost)
    return tracer
