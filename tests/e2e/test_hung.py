"""Is the executor hung: `ctl status` and metrics tell it seconds after it was stopped, and long
before the supervisor kills it.
"""

import signal
from pathlib import Path

import pytest

from tests.support.processes.commands import done
from tests.support.processes.engine import Engine, Json, running_engine, wait_until
from tests.support.processes.streams import join, start_streams, wait_for_tokens

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SETTINGS = (
    "engine.executor=simulated", "engine.simulated_step_us=10000",
    "supervision.hang_timeout_ms=600000", "supervision.step_timeout_ms=600000",
)  # fmt: skip
BODY: Json = {
    "prompt": "once upon a time", "max_tokens": 300, "ignore_eos": True, "return_token_ids": True,
}  # fmt: skip


def hung(engine: Engine) -> dict[str, Json]:
    """Return what `status` says of processes that look hung, by process."""
    return {row["process"]: row for row in done(engine, "status")["hung"]}


def overdue(engine: Engine) -> str:
    """Return the samples of processes that are overdue by the metrics."""
    lines = engine.client().get("/metrics").body.decode().splitlines()
    samples = [line for line in lines if line.startswith("headrace_process_overdue_seconds{")]
    return "\n".join(line for line in samples if float(line.rpartition(" ")[2]))


@pytest.mark.parametrize("child", ["executor.0.0", "scheduler"])
def test_a_process_that_is_stopped_in_its_work_is_named_until_it_goes_on(
    tmp_path: Path, tiny_model: Path, child: str
) -> None:
    """With how long its step should take if it is an executor; nobody is killed for it, and the
    stream ends as if nothing had been.
    """
    with running_engine(tmp_path, tiny_model, SETTINGS) as engine:
        wait_until(lambda: child not in hung(engine), "it to be well")
        streams = start_streams(engine.client(), [BODY])
        wait_for_tokens(streams, 5)
        before = engine.kill_child(child, signal.SIGSTOP)
        try:
            wait_until(lambda: child in hung(engine), "status to name it")
            row = hung(engine)[child]
            assert row["no_sign_s"] > 2.0
            assert (row["expected_s"] is not None) == (child == "executor.0.0")
            wait_until(lambda: f'process="{child}"' in overdue(engine), "the metrics to name it")
        finally:
            engine.kill_child(child, signal.SIGCONT)
        wait_until(lambda: child not in hung(engine), "it to be well again")
        assert [stream.finish_reason for stream in join(streams)] == ["length"]
        assert engine.children()[child].pid == before.pid
