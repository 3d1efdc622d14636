"""`headrace ctl` against admin workers that say what a test wants."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zmq

from core.scheduler.trace_log import COLUMNS
from frontends.cli.ctl import LOOKS
from frontends.cli.recorded_trace import BEYOND
from ipc.control.declaration import Command, ReplyCode
from ipc.control.registry import COMMANDS
from ipc.messages import ControlCall, ControlReply
from ipc.ports import Context, RouterPort
from ipc.run_directory import RunDirectory
from tests.support.control_plane.control_rig import CALLS, REPLIES
from tests.support.processes.cli import ESCAPE, assert_one_line, headrace, inside

Answer = Callable[[ControlCall], ControlReply | None]
POLL_MS = 20


@dataclass
class FakeWorker:
    """One admin worker on a real socket, in a thread; None = it never answers."""

    answer: Answer
    calls: list[ControlCall] = field(default_factory=list)

    @contextmanager
    def serving(self, context: Context, url: str) -> Iterator[None]:
        """Serve while the context is open."""
        port: RouterPort[ControlCall, ControlReply] = RouterPort(context, url, CALLS, REPLIES)
        is_over = threading.Event()
        thread = threading.Thread(target=self._serve, args=(port, is_over))
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            port.close()

    def _serve(self, port: RouterPort[ControlCall, ControlReply], is_over: threading.Event) -> None:
        while not is_over.is_set():
            port.socket.poll(POLL_MS)
            for received in port.receive(16):
                self.calls.append(received.message)
                reply = self.answer(received.message)
                if reply is not None:
                    port.send(reply, received.peer)


@dataclass
class FakeEngine:
    """A run directory that this test process owns, with fake workers in it."""

    directory: RunDirectory
    key: str

    @property
    def name(self) -> str:
        """Name for `--name`."""
        return self.directory.name

    @contextmanager
    def with_workers(self, *answers: Answer) -> Iterator[list[FakeWorker]]:
        """Serve with these workers."""
        workers = [FakeWorker(answer) for answer in answers]
        with ExitStack() as stack:
            context: Context = stack.enter_context(zmq.Context())
            for index, worker in enumerate(workers):
                stack.enter_context(worker.serving(context, self.directory.admin_url(index)))
            yield workers


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    """Give an engine that is alive as long as this test."""
    directory = RunDirectory.claim(f"test-ctl-{os.getpid()}")
    try:
        yield FakeEngine(directory, directory.write_admin_key())
    finally:
        directory.remove()


def done(call: ControlCall) -> ControlReply:
    """Answer that everything was done."""
    return ControlReply(call.call_id, {"cancelled": 3})


def never(call: ControlCall) -> None:
    """Answer nothing."""


def refuse(code: ReplyCode) -> Answer:
    """Answer with an error."""
    return lambda call: ControlReply(call.call_id, error="no, because", code=code)


def test_no_engine_is_exit_code_3() -> None:
    """The line says how to start one."""
    run = headrace("ctl", "status", "--name", "nobody-has-this-name")
    assert_one_line(run, 3)
    assert "headrace serve --name nobody-has-this-name" in run.err


@pytest.mark.parametrize("name", ["../x", "a b", "x" * 33, ""])
def test_a_name_that_no_engine_can_have_is_a_usage_error(name: str) -> None:
    """It is never used as a path."""
    assert_one_line(inside("ctl", "status", "--name", name), 2)


@pytest.mark.parametrize(
    "command",
    [each for each in COMMANDS.values() if not each.joins_trace and not each.saves_file],
    ids=lambda command: command.name,
)
def test_every_command_reaches_a_worker_with_the_key_of_the_run_directory(
    engine: FakeEngine, command: Command
) -> None:
    """The command line has all declared commands, and finds the key by itself."""
    needed = needed_arguments(command)
    confirmed = ["--yes"] if command.confirm else []
    with engine.with_workers(done) as (worker,):
        spelled = command.spelling.split()
        run = inside("ctl", *spelled, *needed, "--name", engine.name, *confirmed)
    assert (run.code, run.err) == (0, "")
    (call,) = worker.calls
    assert (call.command, call.key) == (command.name, engine.key)
    assert call.actor.startswith("ctl ")
    command.check(call.args)


def needed_arguments(command: Command) -> list[str]:
    """Return as few arguments as the command takes: all that are required, or the positional."""
    spelled: list[str] = []
    for argument in command.arguments:
        if argument.positional:
            spelled.append(argument.choices[0] if argument.choices else "1")
        elif argument.required:
            spelled += [f"--{argument.name}", "1"]
    return spelled


def test_a_trace_goes_into_a_file(engine: FakeEngine, tmp_path: Path) -> None:
    """Piece by piece; what is said is what the file holds."""

    def piece(call: ControlCall) -> ControlReply:
        first = int(str(call.args.get("first", 0)))
        rows = [[first, 1, 1, 1, 0, "a", "batch", "stopped", 0, 0, 0]] if first < 2 else []
        result = {"rows": rows, "columns": list(COLUMNS), "first": first, "next": first + 1}
        return ControlReply(call.call_id, result | {"total": 2, "machine": None})

    path = tmp_path / "t.csv"
    with engine.with_workers(piece) as (worker,):
        run = inside("ctl", "record-trace", str(path), "--name", engine.name, "--json")
    assert json.loads(run.out) == {
        "file": str(path), "num_requests": 2, "num_missed": 0, "machine": "",
    }  # fmt: skip
    assert [call.args for call in worker.calls] == [{}, {"first": 1, "limit": 1}, {"first": BEYOND}]
    assert len(path.read_text().splitlines()) == 3


def test_a_piece_of_a_trace_is_asked_for_again_while_the_scheduler_is_busy(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """One piece that is answered late does not lose the others; one that never is, is told."""
    answers = iter([False, True, False, False, True])

    def sometimes(call: ControlCall) -> ControlReply:
        if not next(answers, False):
            code = (ReplyCode.NOT_CONFIRMED, ReplyCode.BUSY)[len(worker.calls) % 2]
            return ControlReply(call.call_id, error="busy", code=code)
        result = {"rows": [], "columns": list(COLUMNS), "first": 0, "next": 0, "total": 0}
        return ControlReply(call.call_id, {**result, "machine": None})

    args = ("ctl", "record-trace", str(tmp_path / "t.csv"), "--name", engine.name)
    with engine.with_workers(sometimes) as (worker,):
        assert inside(*args).code == 0
        assert len(worker.calls) == 5
        assert inside(*args).code != 0
        assert len(worker.calls) == 5 + LOOKS


def test_a_result_is_lines_or_json(engine: FakeEngine) -> None:
    """Without colour in a pipe; JSON is the result as the worker gave it."""
    arguments = ["ctl", "cancel", "cmpl-1", "--yes", "--name", engine.name]
    with engine.with_workers(done) as (worker,):
        lines = inside(*arguments)
        as_json = inside(*arguments, "--json")
    assert lines.out == "cancelled  3\n"
    assert ESCAPE not in lines.out
    assert json.loads(as_json.out) == {"cancelled": 3}
    assert [call.args for call in worker.calls] == [{"request": "cmpl-1"}] * 2


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [(ReplyCode.NOT_CONFIRMED, 1), (ReplyCode.FORBIDDEN, 1), (ReplyCode.BAD_ARGUMENT, 2)],
)
def test_an_error_of_the_worker_is_one_line(
    engine: FakeEngine, code: ReplyCode, exit_code: int
) -> None:
    """With --json too: stdout has data only if there is some."""
    with engine.with_workers(refuse(code)):
        run = inside("ctl", "requests", "--json", "--name", engine.name)
    assert_one_line(run, exit_code)
    assert run.err == "error: no, because\n"


def test_a_silent_worker_is_passed_over(engine: FakeEngine) -> None:
    """The next one is asked after a second."""
    with engine.with_workers(never, done) as (first, second):
        run = inside("ctl", "cancel", "x", "--yes", "--name", engine.name)
    assert run.code == 0
    assert len(first.calls) == len(second.calls) == 1


def test_when_no_worker_answers_the_operation_failed(engine: FakeEngine) -> None:
    """The engine runs, so this is not exit code 3."""
    with engine.with_workers(never):
        run = inside("ctl", "status", "--name", engine.name)
    assert_one_line(run, 1)
    assert "none of its 1 admin workers answers" in run.err


def test_a_dangerous_command_needs_yes_without_a_terminal(engine: FakeEngine) -> None:
    """Nothing is sent before somebody has agreed."""
    with engine.with_workers(done) as (worker,):
        run = inside("ctl", "shutdown", "--name", engine.name)
    assert_one_line(run, 2)
    assert f"Stop engine {engine.name}?" in run.err
    assert worker.calls == []


def test_wrong_arguments_are_refused_before_an_engine_is_looked_for() -> None:
    """Usage comes first, so the answer is the same whatever runs."""
    assert_one_line(inside("ctl", "cancel", "--name", "nobody"), 2)
    assert_one_line(inside("ctl", "shutdown", "--drain", "-1", "--name", "nobody"), 2)


def test_a_configured_admin_key_comes_from_the_environment(engine: FakeEngine) -> None:
    """Where the engine wrote no key of its own, the line says what to set."""
    (engine.directory.path / "admin.key").unlink()
    with engine.with_workers(done) as (worker,):
        without = inside("ctl", "requests", "--name", engine.name)
        given = headrace(
            "ctl", "requests", "--name", engine.name, env={"HEADRACE_ADMIN_KEY": "mine"}
        )
    assert_one_line(without, 1)
    assert "HEADRACE_ADMIN_KEY" in without.err
    assert given.code == 0
    assert [call.key for call in worker.calls] == ["mine"]


def test_a_bundle_is_written_for_its_owner_alone(engine: FakeEngine, tmp_path: Path) -> None:
    """The whole answer as JSON; the terminal gets the name and size of the file."""
    answer = {"versions": {"headrace": "1"}, "logs": {"scheduler": ["ü"]}}
    file = tmp_path / "dump.json"
    with engine.with_workers(lambda call: ControlReply(call.call_id, answer)):
        run = inside("ctl", "dump", str(file), "--name", engine.name, "--json")
    assert (run.code, run.err) == (0, "")
    assert json.loads(file.read_text(encoding="utf-8")) == answer
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(run.out)["file"] == str(file)
    with engine.with_workers(lambda call: ControlReply(call.call_id, answer)):
        assert_one_line(inside("ctl", "dump", str(tmp_path), "--name", engine.name), 1)


def test_a_grouped_command_is_two_words(engine: FakeEngine) -> None:
    """`cache drop` is the command `cache-drop`; the group alone is a usage error."""
    with engine.with_workers(lambda call: ControlReply(call.call_id, {})) as (worker,):
        run = inside("ctl", "cache", "drop", "--tenant", "acme", "--yes", "--name", engine.name)
        assert_one_line(inside("ctl", "cache"), 2)
    assert (run.code, worker.calls[0].command) == (0, "cache-drop")
    assert worker.calls[0].args == {"tenant": "acme"}
