"""`python -P -m frontends.http FD`: one http process of an engine, started by its supervisor.

Owns: the way from what was inherited (setup, listening socket, shared memory) to a running server.
Never knows: requests.
"""

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Callable

import uvloop
import zmq

from core.config.file import config_from_json
from core.config.headrace import HeadraceConfig
from core.errors import ConfigError
from core.messages.http import ToHttp
from core.messages.tokenizer import ToTokenizer
from core.model_card import card_from_json
from core.monotonic_clock import MonotonicClock
from core.peers import BoardPeers
from core.supervision.actions import EXIT_UNUSABLE
from frontends.board_source import BoardSource
from frontends.fd_limit import raise_fd_limit
from frontends.http.lifecycle import Lifecycle
from frontends.http.wiring import Outside, build
from ipc.async_port import AsyncPort
from ipc.child import Child
from ipc.codec import Codec
from ipc.directory import DirectoryReader
from ipc.errors import IpcError
from ipc.pages import HTTP_PAGE, SUPERVISOR_PAGE
from ipc.ports import Context, DealerPort
from ipc.segment import Segment

EXIT_SETUP = 2


def main() -> int:
    """Run one http process; return its exit code."""
    try:
        child = Child.attach(sys.argv)
        config = config_from_json(bytes(child.setup.config))
    except IpcError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_SETUP
    raise_fd_limit(config.http.max_connections)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(child, config))
    except ConfigError as error:
        child.tell_fault(error)
        return EXIT_UNUSABLE
    return 0


async def run(child: Child, config: HeadraceConfig) -> None:
    """Serve until the supervisor asks to stop; raises ConfigError."""
    lifecycle = Lifecycle()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lifecycle.drain)
    context: Context = zmq.Context()
    try:
        server = build(_outside(child, config, context), lifecycle)
        _go_by_directory(child)
        gc.collect()
        gc.freeze()
        await server.serve(child.serving)
    finally:
        context.destroy(linger=0)


def _outside(child: Child, config: HeadraceConfig, context: Context) -> Outside:
    directory, clock = child.run_directory, MonotonicClock()
    tenants = DirectoryReader(Segment.open(directory.directory, readonly=True))
    return Outside(
        config=config,
        card=card_from_json(child.setup.model),
        listener=child.listening_socket("http"),
        ports=[_port(child, context, index) for index in range(config.tokenizer.processes)],
        serving_epoch=_serving_epoch(child),
        read_boards=BoardSource(directory, child.setup.peers, clock).read,
        read_directory=tenants.read,
        board=child.page(HTTP_PAGE),
        stamp=child.stamp,
        clock=clock,
        wall_clock_s=time.time,
    )


def _go_by_directory(child: Child) -> None:
    """Say at once which version of the tenant directory is in force; each request reads it anew."""
    watch, bell = child.directory(), child.doorbell(f"directory.{child.child_id.split('.')[1]}")

    def look() -> None:
        bell.clear()
        snapshot = watch.look()
        if snapshot is not None:
            watch.confirm(snapshot)

    look()
    asyncio.get_running_loop().add_reader(bell.fileno(), look)


def _port(child: Child, context: Context, tokenizer: int) -> AsyncPort[ToHttp, ToTokenizer]:
    """Return the way to one tokenizer."""
    return AsyncPort(
        DealerPort(
            context,
            child.run_directory.tokenizer_url(tokenizer),
            f"{child.child_id}.{child.epoch}".encode(),
            Codec[ToHttp](ToHttp),
            Codec[ToTokenizer](ToTokenizer),
        )
    )


def _serving_epoch(child: Child) -> Callable[[int], int]:
    """Return the question which instance of a tokenizer serves."""
    peers = BoardPeers(child.page_of("supervisor", SUPERVISOR_PAGE), child.peer_epoch)

    def serving_epoch(tokenizer: int) -> int:
        peers.look()
        return peers.peer(f"tokenizer.{tokenizer}").serving_epoch

    return serving_epoch


if __name__ == "__main__":
    sys.exit(main())
