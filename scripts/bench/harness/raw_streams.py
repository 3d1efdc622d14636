"""A client that costs next to nothing: many streams over plain sockets, in a process of its own.

Owns: the connections, and three counts: bytes, events, answers that came to their end. Never knows:
JSON or HTTP beyond where an answer ends. What arrives is counted as bytes in one search, never
parsed, so that the client is not what is measured. `python -m scripts.bench.harness.raw_streams`
reads one line of JSON (a `Load`) and writes its `Counts` once every connection has had output, then
at each line that it reads; it ends with its standard input.
"""

import selectors
import socket
import sys
from dataclasses import dataclass
from itertools import cycle

import msgspec

RECEIVE_BYTES = 2**16
EVENT = b"data: "
LAST_CHUNK = b"\r\n0\r\n\r\n"
STATUS_OK = b"HTTP/1.1 200 "


class Load(msgspec.Struct, frozen=True):
    """`connections` requests at once to `path`, without end; request k has body k modulo their
    number.
    """

    port: int
    path: str
    connections: int
    bodies: list[str]


class Counts(msgspec.Struct):
    """What has arrived so far."""

    num_bytes: int = 0
    num_events: int = 0
    num_answers: int = 0
    num_failures: int = 0  # answers that are no streams, connections that were closed


@dataclass(slots=True)
class Connection:
    """One socket, its request, and the end of what it received last."""

    socket: socket.socket
    tail: bytes = b""
    is_new: bool = True  # nothing of the present answer has come


class Streams:
    """All connections; `read` takes in what has come on one."""

    def __init__(self, load: Load) -> None:
        """Connect everything and send the first requests."""
        self.counts = Counts()
        self.num_waiting = load.connections  # that have had no output yet
        self._requests = cycle([_request(load, body) for body in load.bodies])
        self.selector = selectors.DefaultSelector()
        for _ in range(load.connections):
            connection = Connection(socket.create_connection(("127.0.0.1", load.port)))
            self.selector.register(connection.socket, selectors.EVENT_READ, connection)
            self._send(connection)

    def read(self, connection: Connection) -> None:
        """Count what has come on a connection; ask again when its answer is complete."""
        data = _received(connection.socket)
        counts = self.counts
        counts.num_bytes += len(data)
        counts.num_events += (connection.tail + data).count(EVENT) - connection.tail.count(EVENT)
        if connection.is_new and data:
            connection.is_new = False
            self.num_waiting -= 1
            counts.num_failures += not data.startswith(STATUS_OK)
        tail = (connection.tail + data)[-len(LAST_CHUNK) :]
        connection.tail = tail
        if tail == LAST_CHUNK:
            counts.num_answers += 1
            self._send(connection)
        elif not data:
            counts.num_failures += 1
            self.selector.unregister(connection.socket)
            connection.socket.close()

    def _send(self, connection: Connection) -> None:
        connection.tail, connection.is_new = b"", True
        connection.socket.sendall(next(self._requests))


def _received(source: socket.socket) -> bytes:
    """Return what has come; nothing if the server has closed, however it did."""
    try:
        return source.recv(RECEIVE_BYTES)
    except ConnectionResetError:
        return b""


def _request(load: Load, body: str) -> bytes:
    content = body.encode()
    head = (
        f"POST {load.path} HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def main() -> None:
    """Run until standard input ends."""
    streams = Streams(msgspec.json.decode(sys.stdin.readline(), type=Load))
    streams.selector.register(sys.stdin, selectors.EVENT_READ, None)
    is_ready = False
    while True:
        for key, _ in streams.selector.select():
            if key.data is not None:
                streams.read(key.data)
            elif sys.stdin.readline():
                _say(streams)
            else:
                return
        if not is_ready and streams.num_waiting <= 0:
            is_ready = True
            _say(streams)


def _say(streams: Streams) -> None:
    sys.stdout.write(msgspec.json.encode(streams.counts).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
