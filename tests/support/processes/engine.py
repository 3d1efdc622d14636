"""A real engine for tests: all processes, on loopback, in directories of its own, gone afterwards.

Owns: starting `headrace serve` with a unique name and free ports, waiting until it is ready, and
ending it by pid. Never knows: what a test wants from it. `Client` is as much of an OpenAI client as
tests need, without retries, so that nothing is smoothed over.
"""

import contextlib
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipc.base_directory import default_base
from ipc.board import BoardReader, Snapshot
from ipc.pages import HTTP_PAGE, SCHEDULER_PAGE, SUPERVISOR_PAGE
from ipc.run_directory import Ports, RunDirectory
from ipc.segment import Segment

READY_TIMEOUT_S = 180.0  # far more than it takes, on a busy machine too
STOP_TIMEOUT_S = 60.0
POLL_S = 0.01
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def json(self) -> Json:
        """The body as a JSON object."""
        value = json.loads(self.body)
        assert isinstance(value, dict), value
        return value


class Client:
    """Talks to one port; `key` is sent as the API key."""

    def __init__(
        self, host: str, port: int, key: str = "", model: str = "", timeout_s: float = 180.0
    ) -> None:
        self._host, self._port, self._timeout_s = host, port, timeout_s
        self._model = model
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def request(self, method: str, path: str, body: Json | None = None) -> Answer:
        """Return the answer to one request on a connection of its own."""
        with contextlib.closing(self._connect()) as connection:
            response = self._send(connection, method, path, body)
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read())

    def get(self, path: str) -> Answer:
        """GET."""
        return self.request("GET", path)

    def post(self, path: str, body: Json) -> Answer:
        """POST a JSON body; a client of the main port names the model unless the body does."""
        return self.request("POST", path, self._named(body))

    def complete(self, prompt: str | list[int], **options: object) -> Json:
        """Return the body of a completion that must succeed."""
        answer = self.post("/v1/completions", {"prompt": prompt, **options})
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json

    def stream(self, path: str, body: Json) -> Iterator[Json]:
        """Yield the events of a stream as they come, an error event included; ends at [DONE] or
        when the server closes.
        """
        with contextlib.closing(self._connect()) as connection:
            response = self._send(connection, "POST", path, self._named({**body, "stream": True}))
            if response.status != 200:
                raise AssertionError((response.status, response.read()))
            for line in response:
                content = line.strip().removeprefix(b"data: ")
                if content == b"[DONE]":
                    return
                if line.startswith(b"data: "):
                    yield json.loads(content)

    def _named(self, body: Json) -> Json:
        return {"model": self._model, **body} if self._model else body

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Json | None
    ) -> http.client.HTTPResponse:
        data = json.dumps(body).encode() if body is not None else None
        connection.request(method, path, data, self._headers)
        return connection.getresponse()


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A child as the supervisor's page shows it."""

    pid: int
    epoch: int
    state: int
    restarts: int


@dataclass(slots=True)
class Engine:
    """A running `headrace serve`."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    model: str

    @property
    def pid(self) -> int:
        """The supervisor's pid."""
        return self.process.pid

    @property
    def directory(self) -> RunDirectory:
        """The run directory."""
        return RunDirectory.attach(self.path)

    @property
    def path(self) -> Path:
        """Where the run directory is, or was."""
        return default_base() / self.name

    @property
    def ports(self) -> Ports:
        """Where it listens."""
        return self.directory.read_ports()

    @property
    def url(self) -> str:
        """Base URL of the main port."""
        return f"http://{self.ports.http_host}:{self.ports.http_port}"

    def client(self, key: str = "") -> Client:
        """Return a client of the main port."""
        return Client(self.ports.http_host, self.ports.http_port, key, model=self.model)

    def admin(self) -> Client:
        """Return a client of the admin port, with the key of the run directory."""
        ports = self.ports
        return Client(ports.admin_host, ports.admin_port, self.directory.read_admin_key())

    def children(self) -> dict[str, ChildRow]:
        """Return all children by id."""
        segment = Segment.open(self.directory.board("supervisor"), readonly=True)
        page = BoardReader(segment, SUPERVISOR_PAGE).read().page
        rows = page["children"][: int(page["num_children"])]
        return {
            row["name"].decode(): ChildRow(
                int(row["pid"]), int(row["epoch"]), int(row["state"]), int(row["restarts"])
            )
            for row in rows
        }

    def scheduler_page(self) -> Snapshot:
        """Return the scheduler's page."""
        segment = Segment.open(self.directory.board("scheduler"), readonly=True)
        return BoardReader(segment, SCHEDULER_PAGE).read()

    def http_page(self) -> Snapshot:
        """Return the page of the first http process."""
        segment = Segment.open(self.directory.board("http.0"), readonly=True)
        return BoardReader(segment, HTTP_PAGE).read()

    def wait_for_pages(self) -> None:
        """Return when all that was told to clients before this call is on the pages."""
        called_ns = time.monotonic_ns()
        wait_until(lambda: self.scheduler_page().stamp_ns > called_ns, "the scheduler's page")
        wait_until(lambda: self.http_page().stamp_ns > called_ns, "the page of http.0")

    def pids(self) -> list[int]:
        """Return the pids of the supervisor and all its children."""
        return [self.pid, *(row.pid for row in self.children().values() if row.pid)]

    def kill_child(self, child_id: str, number: signal.Signals = signal.SIGKILL) -> ChildRow:
        """Signal a child by the pid on the page; return the row as it was before."""
        row = self.children()[child_id]
        os.kill(row.pid, number)
        return row

    @contextlib.contextmanager
    def stopped(self, child_id: str) -> Iterator[ChildRow]:
        """Stop a child, and let it go on when the block ends; yield its row."""
        row = self.kill_child(child_id, signal.SIGSTOP)
        stat = Path(f"/proc/{row.pid}/stat")
        try:
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the stop")
            yield row
        finally:
            os.kill(row.pid, signal.SIGCONT)

    def wait_restarted(self, child_id: str, epoch: int) -> ChildRow:
        """Wait until a later instance than `epoch` serves."""

        def is_serving() -> bool:
            row = self.children()[child_id]
            return row.epoch > epoch and row.state == 2

        wait_until(is_serving, f"{child_id} after epoch {epoch}")
        return self.children()[child_id]

    def stop(self) -> int:
        """SIGTERM, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def log_text(self) -> str:
        """Return what all processes wrote to stderr."""
        return self.log.read_text(errors="replace")


def wait_until(
    condition: Callable[[], bool], what: str, timeout_s: float = READY_TIMEOUT_S
) -> None:
    """Return when `condition` holds; AssertionError after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"still waiting for {what} after {timeout_s} s"
        time.sleep(POLL_S)


def still_running(pids: Sequence[int], timeout_s: float) -> list[int]:
    """Return those of `pids` whose processes have not ended within `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    alive = []
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        left_s = max(deadline_s - time.monotonic(), 0)
        alive += [pid] if not select.select([pidfd], [], [], left_s)[0] else []
        os.close(pidfd)
    return alive


def serve_command(name: str, model: Path, overrides: Sequence[str]) -> list[str]:
    """Return the command line of an engine with free ports and small memory."""
    settings = [
        f"name={name}",
        f"engine.model={model}",
        "http.port=0",
        "engine.num_kv_blocks=256",
        "engine.max_num_seqs=16",
        "engine.max_num_batched_tokens=64",
        "engine.threads=1",
        "tokenizer.arena_tokens=65536",
        *overrides,
    ]
    flags = [part for setting in settings for part in ("--set", setting)]
    optimized = ["-O"] if sys.flags.optimize else []
    return [sys.executable, *optimized, "-P", "-m", "core.runtime.serve", *flags]


def engine_environment(home: Path) -> dict[str, str]:
    """Return an environment whose state lies below `home`; compiled kernels are shared with the
    user's own engines, because building them takes longer than any test.
    """
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    places = {
        "HOME": home,
        "XDG_STATE_HOME": home / "state",
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"),
        "XDG_CONFIG_HOME": home / "config",
    }
    return kept | {name: str(path) for name, path in places.items()}


def unique_name() -> str:
    """Return an engine name that nobody else uses."""
    return f"t-{uuid.uuid4().hex[:16]}"


@contextlib.contextmanager
def running_engine(
    home: Path, model: Path, overrides: Sequence[str] = (), name: str = ""
) -> Iterator[Engine]:
    """Start an engine, wait until it is ready, and end it at the end whatever happens."""
    with starting_engine(home, model, overrides, name) as engine:
        wait_ready(engine)
        yield engine


@contextlib.contextmanager
def starting_engine(
    home: Path, model: Path, overrides: Sequence[str] = (), name: str = ""
) -> Iterator[Engine]:
    """Start an engine without waiting for it, and end it at the end whatever happens."""
    name = name or unique_name()
    home.mkdir(parents=True, exist_ok=True)
    log = home / f"{name}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            serve_command(name, model, overrides),
            env=engine_environment(home),
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    engine = Engine(name, process, log, model.name)
    try:
        yield engine
    finally:
        end(engine)


def wait_ready(engine: Engine) -> None:
    """Wait for the ready line on stdout; AssertionError with the log if it does not come."""
    assert engine.process.stdout is not None
    readable, _, _ = select.select([engine.process.stdout], [], [], READY_TIMEOUT_S)
    line = engine.process.stdout.readline() if readable else b""
    assert line.startswith(b"ready:"), (line, engine.log_text())


def end(engine: Engine) -> None:
    """End the supervisor, politely first; its janitor ends whatever else is left."""
    if engine.process.poll() is None:
        engine.process.send_signal(signal.SIGCONT)
        engine.process.send_signal(signal.SIGTERM)
        try:
            engine.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            engine.process.kill()
            engine.process.wait()
    if engine.process.stdout is not None:
        engine.process.stdout.close()
