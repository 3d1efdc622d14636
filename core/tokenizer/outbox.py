"""What waits to be sent to the http processes, in order, bounded for each of them.

Owns: a queue a peer, and the gathering of the chunks of one step into one message. Never knows:
operations or sockets; `send` is given the port. A peer that takes nothing while its queue grows
over the bound is reported, and its operations are cancelled by the owner.
"""

from collections import deque
from collections.abc import Callable

from core.messages.http import Chunk, Chunks, ToHttp

MAX_CHUNKS_PER_MESSAGE = 512


class HttpOutbox:
    """Messages to http processes, oldest first for each."""

    def __init__(self, max_messages: int) -> None:
        self._max_messages = max_messages
        self._queues: dict[bytes, deque[ToHttp]] = {}
        self._chunks: dict[bytes, list[Chunk]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + len(self._chunks)

    def add(self, peer: bytes, message: ToHttp) -> None:
        """Queue a message behind all that was added for the peer."""
        self._seal(peer)
        self._queues.setdefault(peer, deque()).append(message)

    def add_chunk(self, peer: bytes, chunk: Chunk) -> None:
        """Queue a chunk; chunks that follow each other travel together."""
        chunks = self._chunks.setdefault(peer, [])
        chunks.append(chunk)
        if len(chunks) >= MAX_CHUNKS_PER_MESSAGE:
            self._seal(peer)

    def send(self, send: Callable[[ToHttp, bytes], bool]) -> list[bytes]:
        """Send what the peers take; return those whose queues are over the bound."""
        for peer in list(self._chunks):
            self._seal(peer)
        for peer, queue in list(self._queues.items()):
            while queue and send(queue[0], peer):
                queue.popleft()
            if not queue:
                del self._queues[peer]
        return [peer for peer, queue in self._queues.items() if len(queue) > self._max_messages]

    def peers(self) -> list[bytes]:
        """Return the peers for which something waits."""
        return list(self._queues.keys() | self._chunks.keys())

    def forget(self, peer: bytes) -> None:
        """Drop everything that waits for a peer."""
        self._queues.pop(peer, None)
        self._chunks.pop(peer, None)

    def _seal(self, peer: bytes) -> None:
        chunks = self._chunks.pop(peer, None)
        if chunks:
            self._queues.setdefault(peer, deque()).append(Chunks(chunks))
