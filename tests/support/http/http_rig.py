"""One real http process's loop in a thread of the test, with the fake engine behind it.

Everything is as in production (uvloop, sockets, protocol, application) but the process around it.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import openai
import orjson
import uvloop
import zmq

from core.config.headrace import HeadraceConfig
from core.config.processes import HttpConfig, SupervisionConfig
from core.config.tracing import TracingConfig
from core.messages.http import ToHttp
from core.messages.tokenizer import ToTokenizer
from core.model_card import ModelCard
from core.monotonic_clock import MonotonicClock
from frontends.boards import Boards
from frontends.http.lifecycle import Lifecycle
from frontends.http.wiring import Outside, build
from ipc.async_port import AsyncPort
from ipc.board import BoardReader, BoardWriter, board_layout
from ipc.codec import Codec
from ipc.directory import DirectorySnapshot
from ipc.heartbeat import HeartbeatState
from ipc.layout import anonymous_segment
from ipc.pages import HTTP_PAGE
from ipc.ports import Context, DealerPort
from tests.support.control_plane.boards import healthy
from tests.support.http.fake_engine import WAIT_S, FakeEngine
from tests.support.processes.engine import wait_until

MODEL = "tiny-fake"
MAX_MODEL_LEN = 8192
CARD = ModelCard(
    name=MODEL,
    path="/nowhere",
    max_model_len=MAX_MODEL_LEN,
    vocab_size=0x110000,
    eos_token_ids=(0,),
    weights_bytes=0,
    created_s=1_700_000_000,
)


@dataclass(slots=True)
class HttpRig:
    """A running server, for a test's thread."""

    config: HeadraceConfig
    engine: FakeEngine = field(init=False)
    port: int = 0
    boards: Boards = field(default_factory=healthy)
    directory: DirectorySnapshot = field(default_factory=DirectorySnapshot)
    tokenizer_epoch: int = 1
    page: BoardReader = field(init=False)
    clients: ExitStack = field(default_factory=ExitStack)
    states: list[HeartbeatState] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop = field(init=False)
    lifecycle: Lifecycle = field(init=False)
    thread: threading.Thread = field(init=False)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    def connect(self, receive_buffer_bytes: int | None = None) -> socket.socket:
        """Return a raw connection with a bounded patience."""
        raw = socket.socket()
        if receive_buffer_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        raw.settimeout(WAIT_S)
        raw.connect(("127.0.0.1", self.port))
        return raw

    def get(self, path: str, **headers: str) -> httpx2.Response:
        """Return the answer to a GET."""
        return httpx2.get(self.url + path, headers=headers, timeout=WAIT_S, verify=False)

    def post(self, path: str, body: object, **headers: str) -> httpx2.Response:
        """Return the answer to a POST; `body` is sent as it is if it is bytes, else as JSON."""
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx2.post(
            self.url + path, content=content, headers=named, timeout=WAIT_S, verify=False
        )

    def openai(self, **options: Any) -> openai.OpenAI:
        """Return the official client, without retries unless `options` say so."""
        settings: dict[str, Any] = {"api_key": "unused", "max_retries": 0, "timeout": WAIT_S}
        settings["http_client"] = openai.DefaultHttpxClient(verify=False)  # loads no certificates
        client = openai.OpenAI(base_url=f"{self.url}/v1", **(settings | options))
        return self.clients.enter_context(client)

    def drain(self) -> None:
        """Do what SIGTERM does; return when idle connections are closed, so that none of the test's
        that comes next is taken for one.
        """
        self.loop.call_soon_threadsafe(self.lifecycle.drain)
        wait_until(lambda: HeartbeatState.DRAINING in self.states, "the server to drain", WAIT_S)

    def wait_for_page(self, is_due: Callable[[Any], bool]) -> Any:
        """Return the process's page once `is_due` says so of it."""
        pages: list[Any] = []

        def is_shown() -> bool:
            pages.append(self.page.read().page)
            return is_due(pages[-1])

        wait_until(is_shown, "the page", WAIT_S)
        return pages[-1]


async def _serve(rig: HttpRig, socket_path: Path, is_up: threading.Event) -> None:
    clock = MonotonicClock()
    context: Context = zmq.Context()
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.setblocking(False)
    rig.port = listener.getsockname()[1]
    rig.loop = asyncio.get_running_loop()
    rig.lifecycle = Lifecycle()
    url = f"ipc://{socket_path}"
    rig.engine = FakeEngine(context, url)
    engine_task = rig.loop.create_task(rig.engine.run())
    segment = anonymous_segment(board_layout(HTTP_PAGE))
    rig.page = BoardReader(segment, HTTP_PAGE)
    dealer: DealerPort[ToHttp, ToTokenizer] = DealerPort(
        context, url, b"http.0.1", Codec[ToHttp](ToHttp), Codec[ToTokenizer](ToTokenizer)
    )
    outside = Outside(
        config=rig.config,
        card=CARD,
        listener=listener,
        ports=[AsyncPort(dealer)],
        serving_epoch=lambda _: rig.tokenizer_epoch,
        read_boards=lambda: rig.boards,
        read_directory=lambda: rig.directory,
        board=BoardWriter(segment, HTTP_PAGE, 1),
        stamp=lambda state, _: rig.states.append(state),
        clock=clock,
        wall_clock_s=time.time,
    )
    try:
        await build(outside, rig.lifecycle).serve(is_up.set)
    finally:
        engine_task.cancel()
        await asyncio.gather(engine_task, return_exceptions=True)
        context.destroy(linger=0)


@contextmanager
def running(
    socket_path: Path,
    *,
    directory: DirectorySnapshot | None = None,
    stop_timeout_ms: int = SupervisionConfig().stop_timeout_ms,
    tracing: TracingConfig | None = None,
    **http: Any,
) -> Iterator[HttpRig]:
    """Run a server whose `http` settings are these; it is drained and joined at the end."""
    config = replace(
        HeadraceConfig(),
        http=replace(HttpConfig(port=0), **http),
        supervision=SupervisionConfig(heartbeat_ms=10, stop_timeout_ms=stop_timeout_ms),
        tracing=tracing or TracingConfig(),
    )
    rig = HttpRig(config)
    if directory is not None:
        rig.directory = directory
    is_up = threading.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(rig, socket_path, is_up))

    rig.thread = threading.Thread(target=run, name="http-rig")
    rig.thread.start()
    try:
        assert is_up.wait(WAIT_S), "the server did not come up"
        yield rig
    finally:
        rig.clients.close()
        if rig.thread.is_alive():
            rig.drain()
        rig.thread.join(WAIT_S)
        assert not rig.thread.is_alive(), "the server did not end"
