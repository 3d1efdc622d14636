"""Ranks as processes of this machine, connected by Unix sockets.

Owns: how they meet, how parts travel, and the bound on every wait. Each rank listens beside the
meeting place until all above it have connected, and then nobody listens any more. The place is in
the run directory, which no other user may enter, and another one for each instance of the group, so
that nobody waits for a dead predecessor. Never knows: what is exchanged. A rank that dies or falls
silent is a RanksError on all others: the group is lost, and its supervisor starts another one.

Everybody sends its part to everybody while it receives theirs, so that no two wait for each other
with full buffers.
"""

import select
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from core.errors import RanksError

MAX_RANKS = 256  # a rank says in one byte which one it is
RETRY_S = 0.01  # between two looks whether another rank listens
BUFFER_BYTES = 1 << 20
MS_PER_S = 1000

Parts = dict[int, memoryview]  # what is still to be sent to, or received from, each rank


class SocketRanks:
    """See `core.parallel.ranks.Ranks`."""

    def __init__(
        self, meeting_place: Path, rank: int, size: int, *, join_s: float, exchange_s: float
    ) -> None:
        """`join_s` bounds the wait for the others, `exchange_s` each exchange, s."""
        assert 0 <= rank < size <= MAX_RANKS, (rank, size)
        self.rank = rank
        self.size = size
        self._meeting_place = meeting_place
        self._join_s = join_s
        self._exchange_s = exchange_s
        self._others: dict[int, socket.socket] = {}
        self._leave = weakref.finalize(self, _close_all, self._others)

    def join(self) -> None:
        """Meet the others: those below by their places, those above at our own."""
        with _named(f"rank {self.rank} waits for the others"):
            until_s = time.monotonic() + self._join_s
            with self._listening() as listener:
                for rank in range(self.rank):
                    self._others[rank] = connect(self._place_of(rank), until_s)
                    self._others[rank].sendall(bytes((self.rank,)))
                for _ in range(self.rank + 1, self.size):
                    rank, connection = _accept(listener, until_s)
                    self._others[rank] = connection
        for connection in self._others.values():
            connection.setblocking(False)
        self.gather(torch.zeros(1))

    def gather(self, part: Tensor) -> Tensor:
        """Return everybody's part; what travels are bytes, so any dtype does."""
        assert len(self._others) == self.size - 1, "gather before join"
        everybody = torch.empty(self.size, *part.shape, dtype=part.dtype)
        everybody[self.rank] = part
        places = everybody.view(torch.uint8).reshape(self.size, -1).numpy()
        with _named(f"rank {self.rank} exchanges with the others"):
            self._exchange(
                dict.fromkeys(self._others, places[self.rank].data),
                {rank: places[rank].data for rank in self._others},
            )
        return everybody

    def close(self) -> None:
        """Leave the group, as who is forgotten does; the others notice at their next exchange."""
        self._leave()

    def _exchange(self, unsent: Parts, missing: Parts) -> None:
        """Send and receive as it goes; raises OSError when a rank is gone or late."""
        until_s = time.monotonic() + self._exchange_s
        while unsent or missing:
            for rank, connection in self._others.items():
                _advance(unsent, rank, connection.send)
                _advance(missing, rank, connection.recv_into)
            if unsent or missing:
                self._wait(unsent, missing, until_s)

    def _wait(self, unsent: Parts, missing: Parts, until_s: float) -> None:
        """Wait until something can be sent or received; raises TimeoutError."""
        poll = select.poll()
        for rank in unsent.keys() | missing.keys():
            wanted = select.POLLOUT * (rank in unsent) | select.POLLIN * (rank in missing)
            poll.register(self._others[rank], wanted)
        if not poll.poll(max(0.0, until_s - time.monotonic()) * MS_PER_S):
            raise TimeoutError(f"ranks {sorted(missing)} are silent")

    @contextmanager
    def _listening(self) -> Iterator[socket.socket]:
        """Give a socket at our place, for as long as others come."""
        place = self._place_of(self.rank)
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(str(place))
            try:
                listener.listen(self.size)
                yield listener
            finally:
                place.unlink(missing_ok=True)

    def _place_of(self, rank: int) -> Path:
        return self._meeting_place.with_name(f"{self._meeting_place.name}.{rank}")


def _close_all(connections: dict[int, socket.socket]) -> None:
    for connection in connections.values():
        connection.close()


def connect(place: Path, until_s: float) -> socket.socket:
    """Connect to who listens at `place`, as soon as somebody does; raises OSError."""
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(place))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() >= until_s:
                raise
            time.sleep(RETRY_S)
        else:
            return _prepared(connection, until_s)


def _accept(listener: socket.socket, until_s: float) -> tuple[int, socket.socket]:
    """Take in who connects, and which rank it is; raises OSError."""
    listener.settimeout(max(RETRY_S, until_s - time.monotonic()))
    connection = _prepared(listener.accept()[0], until_s)
    try:
        said = connection.recv(1)
        if not said:
            raise ConnectionResetError("one has gone before it said who it is")
    except OSError:
        connection.close()
        raise
    return said[0], connection


def _prepared(connection: socket.socket, until_s: float) -> socket.socket:
    """Bound the waits of a new connection, and let large parts need few of them."""
    connection.settimeout(max(RETRY_S, until_s - time.monotonic()))
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    return connection


def _advance(parts: Parts, rank: int, move: Callable[[memoryview], int]) -> None:
    """Move what can be moved now of the part of `rank`, if any is left."""
    rest = parts.get(rank)
    if rest is None:
        return
    try:
        num_bytes = move(rest)
    except BlockingIOError:
        return
    if not num_bytes:
        raise ConnectionResetError(f"rank {rank} is gone")
    if num_bytes < len(rest):
        parts[rank] = rest[num_bytes:]
    else:
        del parts[rank]


@contextmanager
def _named(doing: str) -> Iterator[None]:
    """Give a fault of the group its name."""
    try:
        yield
    except OSError as error:
        raise RanksError(f"{doing}: {error}") from error
