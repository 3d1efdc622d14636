"""HTTP by hand over a socket: what clients do wrong cannot be asked of a client library."""

import socket
from dataclasses import dataclass

import orjson

HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> object:
        """The `code` of an error body."""
        return orjson.loads(self.body)["error"]["code"]


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """Return the bytes of a request; header names are written with `_` for `-`."""
    named = {"host": "localhost", "content-length": str(len(body))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def completion(prompt: str, **fields: object) -> bytes:
    """Return the bytes of a completions request for the fake engine."""
    body = {"model": "tiny-fake", "prompt": prompt, **fields}
    return request("POST", "/v1/completions", orjson.dumps(body))


class RawReader:
    """Reads answers from a connection, one after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""

    def answer(self) -> RawAnswer:
        """Return the next response; its body has a length or is chunked."""
        head = self.until(HEAD_END).decode("latin-1")
        status_line, *lines = head.strip().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in pairs}
        if "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        else:
            body = b"".join(iter(self.chunk, b""))
        return RawAnswer(int(status_line.split()[1]), headers, body)

    def head(self) -> str:
        """Return the next response's head."""
        return self.until(HEAD_END).decode("latin-1")

    def chunk(self) -> bytes:
        """Return the next chunk of a chunked body; b"" at its end."""
        size = int(self.until(b"\r\n"), 16)
        data = self._exactly(size)
        self._exactly(2)
        return data

    def until(self, mark: bytes) -> bytes:
        """Return everything up to and with `mark`."""
        while mark not in self._buffer:
            self._fill()
        found, _, self._buffer = self._buffer.partition(mark)
        return found + mark

    def is_closed(self) -> bool:
        """Wait for the server to close; False if it sends something instead."""
        try:
            return not self._buffer and self._connection.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, num_bytes: int) -> bytes:
        while len(self._buffer) < num_bytes:
            self._fill()
        data, self._buffer = self._buffer[:num_bytes], self._buffer[num_bytes:]
        return data

    def _fill(self) -> None:
        data = self._connection.recv(65_536)
        if not data:
            raise EOFError(f"closed after {self._buffer!r}")
        self._buffer += data
