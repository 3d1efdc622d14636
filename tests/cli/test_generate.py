"""`headrace generate`: text on stdout, from a running engine or from one of its own."""

import asyncio
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from frontends.cli.api_client import events
from frontends.cli.generate import text_of
from ipc.run_directory import Ports, RunDirectory, list_engines
from tests.support.http.fake_openai import FakeServer, decode, encode, encode_chat, next_id
from tests.support.models.tiny_model import write_tiny_model
from tests.support.processes.cli import HEADRACE, Run, assert_one_line, headrace


@pytest.fixture
def running() -> Iterator[RunDirectory]:
    """Give the run directory of an engine that is alive as long as this test."""
    directory = RunDirectory.claim(f"test-gen-{os.getpid()}")
    try:
        yield directory
    finally:
        directory.remove()


def generate(server: FakeServer, directory: RunDirectory, *arguments: str, stdin: str = "") -> Run:
    """Run `generate` while `server` serves as that engine."""

    async def main() -> Run:
        async with server.running():
            port = urlsplit(server.url).port or 0
            directory.write_ports(Ports("127.0.0.1", port, "127.0.0.1", 1))
            given = ("generate", "--name", directory.name, *arguments)
            return await asyncio.to_thread(headrace, *given, stdin=stdin)

    return asyncio.run(main())


def continuation(ids: list[int], num_tokens: int) -> str:
    """Return what the fake model says after `ids`."""
    ids, start = list(ids), len(ids)
    for _ in range(num_tokens):
        ids.append(next_id(ids))
    return "".join(decode(token) for token in ids[start:])


def test_a_running_engine_is_asked_and_its_text_is_stdout(running: RunDirectory) -> None:
    """The prompt is one user message; the text ends with a line break and nothing else is
    written."""
    server = FakeServer()
    run = generate(server, running, "Why?", "--max-tokens", "5", "--temperature", "0")
    messages = [{"role": "user", "content": "Why?"}]
    assert run == Run(0, continuation(encode_chat(messages), 5) + "\n", "")
    (body,) = server.bodies
    assert (body["model"], body["messages"], body["temperature"]) == ("fake", messages, 0.0)


def test_a_raw_prompt_from_standard_input_is_continued(running: RunDirectory) -> None:
    """`-` reads it, line breaks included, and `--raw` leaves the chat template out."""
    run = generate(FakeServer(), running, "-", "--raw", "--max-tokens", "4", stdin="Once\n")
    assert run.out == continuation(encode("Once\n"), 4) + "\n"


def test_json_is_one_document_at_the_end(running: RunDirectory) -> None:
    """With the whole text and the usage."""
    run = generate(FakeServer(), running, "hi", "--system", "short", "--max-tokens", "3", "--json")
    document = json.loads(run.out)
    messages = [{"role": "system", "content": "short"}, {"role": "user", "content": "hi"}]
    assert document["text"] == continuation(encode_chat(messages), 3)
    assert document["usage"]["completion_tokens"] == 3


def test_an_error_in_the_stream_ends_it_with_exit_code_1(running: RunDirectory) -> None:
    """What came before stays on stdout; the error is one line."""
    run = generate(FakeServer(fail_after=2), running, "hi", "--max-tokens", "5")
    assert run.code == 1
    assert len(run.out) == 2
    assert run.err.endswith("error: the executor died\n")


def test_an_engine_that_does_not_listen_is_one_line(running: RunDirectory) -> None:
    """The port of its papers is closed."""
    running.write_ports(Ports("127.0.0.1", 1, "127.0.0.1", 1))
    assert_one_line(headrace("generate", "hi", "--name", running.name), 1)


def test_a_configuration_that_cannot_be_accepted_is_told_as_by_serve() -> None:
    """The engine of its own says what is wrong, and with which exit code."""
    run = headrace("generate", "hi", "--set", "engine.modl=x")
    assert_one_line(run, 2)
    assert "did you mean engine.model?" in run.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--temperature", "nan", "hi"),
        ("--temperature", "2.5", "hi"),
        ("--temperature", "hot", "hi"),
        ("--max-tokens", "0", "hi"),
        ("--max-tokens", "1.5", "hi"),
        ("--seed", str(2**63), "hi"),
        ("--raw", ""),
    ],
)
def test_what_every_engine_would_refuse_starts_none(arguments: tuple[str, ...]) -> None:
    """Half a minute of loading a model would only end in the same words."""
    assert_one_line(headrace("generate", "--name", f"none-{os.getpid()}", *arguments), 2)


def test_raw_and_system_exclude_each_other() -> None:
    """A raw prompt has no messages."""
    assert_one_line(headrace("generate", "hi", "--raw", "--system", "x"), 2)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}, ("a", None)),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, ("", "stop")),
        ({"choices": [{"text": "b", "finish_reason": "length"}]}, ("b", "length")),
        ({"choices": [], "usage": {}}, ("", None)),
        ({"choices": [{"delta": {"role": "assistant", "content": None}}]}, ("", None)),
    ],
)
def test_events_of_both_kinds_of_stream_are_understood(
    event: dict[str, object], expected: tuple[str, str | None]
) -> None:
    """Chat deltas, completion texts, and the last event that has only the usage."""
    assert text_of(event) == expected


class Lines:
    """A response that has these lines."""

    def __init__(self, *lines: bytes) -> None:
        self._lines = [*lines]

    def readline(self, limit: int) -> bytes:
        """Return the next line."""
        return self._lines.pop(0) if self._lines else b""


def test_comments_are_skipped_and_a_stream_must_end_properly() -> None:
    """Keep-alive comments say nothing; a stream without its last event was cut off."""
    whole = Lines(b": keep-alive\n", b"\n", b'data: {"a": 1}\n', b"data: [DONE]\n")
    assert list(events(whole)) == [{"a": 1}]
    for cut in (Lines(b'data: {"a": 1}\n'), Lines(b'data: {"a"')):
        with pytest.raises(Exception, match="stream"):
            list(events(cut))


ENGINE = ("--set", "engine.executor=simulated", "--set", "engine.num_kv_blocks=64")


@pytest.mark.slow
@pytest.mark.e2e
def test_without_a_running_engine_one_is_started_and_leaves_nothing(tmp_path: Path) -> None:
    """All real processes, for one prompt; afterwards there is no process and no directory."""
    model = write_tiny_model(tmp_path / "tiny")
    command = [*HEADRACE, "generate", "hi", "--model", str(model), *ENGINE, "--max-tokens", "4"]
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, b"")
    assert json.loads(out)["usage"]["completion_tokens"] >= 1
    assert f"generate-{process.pid}" not in [engine.name for engine in list_engines()]


@pytest.mark.slow
@pytest.mark.e2e
def test_a_killed_generate_takes_its_engine_with_it(tmp_path: Path) -> None:
    """`kill -9` while the engine starts: the supervisor dies too, and its pipes close."""
    model = write_tiny_model(tmp_path / "tiny")
    command = [*HEADRACE, "generate", "hi", "--model", str(model), *ENGINE]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    name = f"generate-{process.pid}"
    while (owner := owner_pid(name)) is None:
        assert process.poll() is None
    pidfd = os.pidfd_open(owner)
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        assert ended(pidfd)
    finally:
        os.close(pidfd)
    RunDirectory.claim(f"test-sweep-{os.getpid()}").remove()
    assert name not in [engine.name for engine in list_engines()]


def owner_pid(name: str) -> int | None:
    """Return the pid of the supervisor of a live engine, or None."""
    return next((e.pid for e in list_engines() if e.name == name and e.is_alive), None)


def ended(pidfd: int) -> bool:
    """Wait for the end of a process within a bound."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(60_000))
