"""The bounds of a connection, in seconds and bytes, and the phases in which they hold.

Owns: numbers and the phase of a connection. Never knows: transports, parsers, ASGI.

    HEAD ──► BODY ──► IDLE ──► HEAD …        any ──► CLOSING

From the first byte (a new connection: from accept) the head has `header_timeout_s`, then the body
`body_timeout_s`; an idle connection without a running answer lives `keep_alive_s`; what a refused
one sends is thrown away for `linger_s`, so that the client can read the refusal before the reset
that unread bytes cause.
"""

from dataclasses import dataclass
from enum import Enum

from core.config.processes import HttpConfig

MS_PER_S = 1000
LINGER_S = 1.0
MAX_PIPELINED_BYTES = 65_536
MAX_PIPELINED_REQUESTS = 16
NUM_WHOLE_BODIES = 16


class Phase(Enum):
    """What a connection expects of its client."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    CLOSING = "closing"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may cost."""

    max_connections: int
    max_body_bytes: int
    max_header_bytes: int
    header_timeout_s: float
    body_timeout_s: float
    write_timeout_s: float
    keep_alive_s: float
    write_buffer_bytes: int
    linger_s: float = LINGER_S

    @classmethod
    def of(cls, config: HttpConfig) -> "ConnectionLimits":
        """Return the limits that `config` asks for."""
        return cls(
            max_connections=config.max_connections,
            max_body_bytes=config.max_body_bytes,
            max_header_bytes=config.max_header_bytes,
            header_timeout_s=config.header_timeout_ms / MS_PER_S,
            body_timeout_s=config.body_timeout_ms / MS_PER_S,
            write_timeout_s=config.write_timeout_ms / MS_PER_S,
            keep_alive_s=config.keep_alive_ms / MS_PER_S,
            write_buffer_bytes=config.write_buffer_bytes,
        )

    @property
    def slice_bytes(self) -> int:
        """Largest single write, and high-water mark: one more slice still fits the buffer."""
        return self.write_buffer_bytes // 2

    @property
    def max_buffered_body_bytes(self) -> int:
        """Bytes of all bodies being received by one process."""
        return NUM_WHOLE_BODIES * self.max_body_bytes


class ByteBudget:
    """Bytes that many connections share."""

    __slots__ = ("_capacity_bytes", "used_bytes")

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self.used_bytes = 0

    def take(self, num_bytes: int) -> bool:
        """Reserve `num_bytes`; False = there is no room and nothing was taken."""
        if self.used_bytes + num_bytes > self._capacity_bytes:
            return False
        self.used_bytes += num_bytes
        return True

    def give(self, num_bytes: int) -> None:
        """Return what was taken."""
        assert 0 <= num_bytes <= self.used_bytes, (num_bytes, self.used_bytes)
        self.used_bytes -= num_bytes
