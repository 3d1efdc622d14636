"""How much of a request is taken in: its head, its body, and all bodies that arrive at once.

Owns: the counting, and which refusal is due at a limit (431, 413, 503). Never knows: parsers or
sockets. A refusal is returned, since a parser in between would not let an exception through as it
is.
"""

from frontends.http.connection.limits import ByteBudget, ConnectionLimits
from frontends.http.errors import ApiError, overloaded


class RequestWeight:
    """The bytes of the request that is arriving on one connection."""

    __slots__ = ("_body_bytes", "_budget", "_fed_bytes", "_head_bytes", "_limits")

    def __init__(self, limits: ConnectionLimits, budget: ByteBudget) -> None:
        """Take bodies from `budget`, which all connections share."""
        self._limits = limits
        self._budget = budget
        self._head_bytes = 0
        self._fed_bytes = 0
        self._body_bytes = 0

    @property
    def has_head(self) -> bool:
        """Whether anything of a head has come."""
        return bool(self._head_bytes or self._fed_bytes)

    def begin(self) -> None:
        """A new request begins."""
        self._head_bytes = self._fed_bytes = 0

    def add_head(self, num_bytes: int) -> ApiError | None:
        """Count a part of the head: of the request line, or a header that is complete."""
        self._head_bytes += num_bytes
        return None if self._head_bytes <= self._limits.max_header_bytes else self._head_too_large()

    def add_fed(self, num_bytes: int) -> ApiError | None:
        """Count what the parser was given of a head: a header may grow without an end."""
        self._fed_bytes += num_bytes
        return None if self._fed_bytes <= self._limits.max_header_bytes else self._head_too_large()

    def announce_body(self, headers: list[tuple[bytes, bytes]]) -> ApiError | None:
        """Look at the announced length of the body, whose digits the parser has checked."""
        lengths = (int(value) for name, value in headers if name == b"content-length")
        return self._over_body(max(lengths, default=0))

    def add_body(self, num_bytes: int) -> ApiError | None:
        """Count a part of the body."""
        refusal = self._over_body(self._body_bytes + num_bytes)
        if refusal is None and not self._budget.take(num_bytes):
            refusal = overloaded("Too many request bodies at once.", "too_many_bodies")
        if refusal is None:
            self._body_bytes += num_bytes
        return refusal

    def release(self) -> None:
        """The body is complete, or will never be: it no longer counts among those arriving."""
        self._budget.give(self._body_bytes)
        self._body_bytes = 0

    def _head_too_large(self) -> ApiError:
        message = f"The request head is larger than {self._limits.max_header_bytes} bytes."
        return ApiError(431, message, code="header_too_large")

    def _over_body(self, num_bytes: int) -> ApiError | None:
        limit = self._limits.max_body_bytes
        if num_bytes <= limit:
            return None
        message = f"The request body is larger than {limit} bytes."
        return ApiError(413, message, code="body_too_large")
