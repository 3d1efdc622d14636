"""Traces of a whole engine: all are sent before it ends, and it needs no collector for that."""

from pathlib import Path

import pytest

from tests.support.processes.engine import running_engine
from tests.support.processes.trace_collector import Collector, attributes, running_collector

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def settings(collector: Collector) -> tuple[str, ...]:
    """Return the settings of an engine that traces to the collector."""
    return (
        "engine.executor=simulated",
        "engine.simulated_step_us=2000",
        f'tracing.endpoint="{collector.endpoint}"',
    )


def test_a_request_is_traced_through_the_engine(tmp_path: Path, tiny_model: Path) -> None:
    """With the tokens that it used; what waits to be sent goes out when the engine stops."""
    with running_collector() as collector:
        with running_engine(tmp_path, tiny_model, settings(collector)) as engine:
            engine.client().complete("once upon a time", max_tokens=7, ignore_eos=True)
            assert engine.stop() == 0
        spans = collector.wait_for(4)
        (whole,) = (span for name, span in spans.items() if name.startswith("text_completion "))
        assert attributes(whole)["gen_ai.usage.output_tokens"] == 7
        assert attributes(whole)["headrace.tenant"] == "default"


def test_an_engine_serves_and_stops_without_its_collector(tmp_path: Path, tiny_model: Path) -> None:
    """As if nobody had asked for traces."""
    with running_collector() as gone:
        pass
    with running_engine(tmp_path, tiny_model, settings(gone)) as engine:
        engine.client().complete("once upon a time", max_tokens=7, ignore_eos=True)
        assert engine.stop() == 0
