"""A small client of the engine's own HTTP port: readiness, the model's name, a streamed completion.

Owns: HTTP and server-sent events as this engine writes them. Never knows: terminals.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Protocol

from core.terminal import CommandError

CONNECT_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 120.0  # keep-alive comments come more often than this
MAX_LINE_BYTES = 1 << 20


class LineSource(Protocol):
    """A response that is read line by line."""

    def readline(self, limit: int, /) -> bytes:
        """Return the next line, or b"" at the end."""
        ...


class ApiClient:
    """Requests to one engine."""

    def __init__(self, host: str, port: int, key: str) -> None:
        """Talk to `host:port`; `key` "" sends none."""
        self._host = "127.0.0.1" if host in ("0.0.0.0", "") else host
        self._port = port
        self._key = key

    def is_ready(self) -> bool:
        """Tell whether new requests are admitted."""
        try:
            with closing(self._connect(CONNECT_TIMEOUT_S)) as connection:
                connection.request("GET", "/health/ready")
                return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False

    def model(self) -> str:
        """Return the name of the model that is served."""
        with closing(self._connect(CONNECT_TIMEOUT_S)) as connection:
            response = self._send(connection, "GET", "/v1/models", None)
            models = json.loads(response.read())
        name: str = models["data"][0]["id"]
        return name

    def stream(self, path: str, body: Mapping[str, object]) -> Iterator[dict[str, object]]:
        """Yield the events of a streamed completion; raises CommandError for whatever goes
        wrong."""
        with closing(self._connect(SILENCE_TIMEOUT_S)) as connection:
            response = self._send(connection, "POST", path, body)
            yield from events(response)

    def _connect(self, timeout_s: float) -> HTTPConnection:
        return HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _send(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
    ) -> HTTPResponse:
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        data = json.dumps(body).encode() if body is not None else None
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            raise CommandError(f"the engine does not answer: {error}") from error
        if response.status != 200:
            raise CommandError(error_message(response.read()))
        return response


def events(response: LineSource) -> Iterator[dict[str, object]]:
    """Yield each event of a stream until its end; an error event or a broken stream raises."""
    try:
        while line := response.readline(MAX_LINE_BYTES):
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:"):
                continue
            if data == b"[DONE]":
                return
            event = json.loads(data)
            if "error" in event:
                raise CommandError(error_message(data))
            yield event
    except (OSError, HTTPException, ValueError) as error:
        raise CommandError(f"the stream broke off: {error}") from error
    raise CommandError("the stream ended before its last event")


def error_message(body: bytes) -> str:
    """Return the message of an error body."""
    try:
        message: str = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the engine answered: {body[:200].decode('utf-8', 'replace')}"
    return message
