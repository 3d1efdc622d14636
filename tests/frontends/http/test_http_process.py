"""The http process as its supervisor starts it: real process, real signals, a fake tokenizer."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import httpx2
import pytest
import zmq

from core.config.headrace import HeadraceConfig
from core.config.processes import HttpConfig, SupervisionConfig
from core.messages.tokenizer import Generate
from core.monotonic_clock import MonotonicClock
from core.runtime.supervisor.launch import ChildProcess, child_environment, child_setup, start_child
from core.runtime.supervisor.stage import Stage, set_up
from core.runtime.wiring import heartbeat_slots
from core.supervision.spec import ChildKind, child_specs
from core.supervision.states import ProcessState
from ipc.board import BoardWriter
from ipc.heartbeat import HeartbeatLine, Heartbeats, HeartbeatState
from ipc.pages import SUPERVISOR_PAGE
from ipc.ports import Context
from tests.support.http.fake_engine import WAIT_S, FakeEngine
from tests.support.http.http_rig import CARD, MODEL
from tests.support.processes.engine import wait_until

EPOCH = 3


@dataclass(slots=True)
class Setting:
    """A started process, its engine, and how to reach it."""

    process: ChildProcess
    engine: FakeEngine
    port: int

    def client(self) -> httpx2.Client:
        """Return a client of the process."""
        base_url = f"http://127.0.0.1:{self.port}"
        return httpx2.Client(base_url=base_url, timeout=WAIT_S, verify=False)

    def wait_for_draining(self) -> None:
        """Ask until the process says that it is stopping."""

        def says_so() -> bool:
            url = f"http://127.0.0.1:{self.port}/health/ready"
            try:
                answer = httpx2.get(url, timeout=WAIT_S, verify=False)
            except (httpx2.RemoteProtocolError, httpx2.ReadError):
                return False  # the connection was still idle when the process began to leave
            assert answer.status_code == 503
            return "this process is stopping" in answer.json()["reasons"]

        wait_until(says_so, "the process to leave")


@contextmanager
def engine_thread(url: str) -> Iterator[FakeEngine]:
    """Run the fake tokenizer in a thread of its own."""
    engines: list[FakeEngine] = []
    is_up, is_over = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def run(context: Context) -> None:
        engines.append(FakeEngine(context, url))
        loops.append(asyncio.get_running_loop())
        task = asyncio.ensure_future(engines[0].run())
        is_up.set()
        await is_over.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with zmq.Context() as context:
        thread = threading.Thread(target=lambda: asyncio.run(run(context)))
        thread.start()
        assert is_up.wait(WAIT_S)
        try:
            yield engines[0]
        finally:
            loops[0].call_soon_threadsafe(is_over.set)
            thread.join(WAIT_S)


@contextmanager
def started() -> Iterator[Setting]:
    """Set the stage of an engine, and start nothing of it but http.0."""
    config = HeadraceConfig(
        name=f"http-{secrets.token_hex(6)}",
        http=replace(HttpConfig(), port=0),
        supervision=SupervisionConfig(stop_timeout_ms=120_000),
    )
    config = replace(config, tokenizer=replace(config.tokenizer, arena_tokens=65_536))
    specs = child_specs(config)
    stage = set_up(config, specs)
    slots = heartbeat_slots(specs)
    try:
        with engine_thread(stage.directory.tokenizer_url(0)) as engine:
            serve_as_tokenizer(stage, slots["tokenizer.0"])
            spec = next(s for s in specs if s.kind is ChildKind.HTTP)
            setup = child_setup(spec, EPOCH, slots, stage, config, CARD, {})
            process = start_child(spec, setup, child_environment(spec, config, os.environ))
            try:
                wait_until_serving(stage, slots["http.0"])
                yield Setting(process, engine, stage.ports.http_port)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait(WAIT_S)
                process.close()
    finally:
        stage.close()


def serve_as_tokenizer(stage: Stage, slot: int) -> None:
    """Write what the supervisor and the heartbeat of a tokenizer that serves say of it."""
    writer = BoardWriter(
        stage.segments[stage.directory.board("supervisor")], SUPERVISOR_PAGE, epoch=1
    )
    child = writer.page["children"][0]
    child["name"], child["epoch"], child["state"] = b"tokenizer.0", 1, ProcessState.RUNNING
    writer.page["num_children"] = 1
    writer.publish(MonotonicClock().now_ns())
    line = HeartbeatLine(stage.segments[stage.directory.heartbeats], slot)
    line.stamp(HeartbeatState.IDLE, MonotonicClock().now_ns())
    line.serve(1)


def wait_until_serving(stage: Stage, slot: int) -> None:
    """Wait for the process's own word that it is ready."""
    beats = Heartbeats(stage.segments[stage.directory.heartbeats])
    until_ns = MonotonicClock().now_ns() + round(WAIT_S * 1e9)
    while beats.epoch(slot) != EPOCH:
        assert MonotonicClock().now_ns() < until_ns, "http.0 does not serve"
        threading.Event().wait(0.01)


@pytest.mark.e2e
def test_sigterm_finishes_running_streams_and_exits_with_zero() -> None:
    """It says that it stops, the stream goes on to its [DONE], then it ends by itself."""
    with started() as setting:
        body = {"model": MODEL, "prompt": "hold", "stream": True}
        with (
            setting.client() as client,
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            lines = answer.iter_lines()
            assert '"text":"a"' in next(line for line in lines if line.startswith("data"))
            setting.process.send_signal(signal.SIGTERM)
            setting.wait_for_draining()
            generate = setting.engine.wait_for(Generate)
            setting.engine.finish(generate, "b")
            assert "data: [DONE]" in list(lines)
        setting.process.wait(WAIT_S)
        assert setting.process.returncode() == 0


@pytest.mark.e2e
def test_the_process_never_loads_tensors() -> None:
    """Neither torch nor a room behind the engine's vocabulary is imported by an http process."""
    program = (
        "import sys, frontends.http.__main__\n"
        "bad = ('torch', 'triton', 'textual', 'core.scheduler', 'core.executor', 'core.runtime')\n"
        "print([m for m in sys.modules if m.startswith(bad)])"
    )
    shown = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


@pytest.mark.e2e
def test_a_process_started_by_hand_says_so() -> None:
    """Without a setup there is one line and no traceback."""
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "frontends.http"], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 2
    assert "headrace serve" in shown.stderr
    assert "Traceback" not in shown.stderr
