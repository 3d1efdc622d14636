"""The smallest HTTP client that can send anything: raw bytes out, status and body back."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WAIT_S = 60.0


@dataclass(frozen=True)
class Reply:
    """An HTTP answer; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


async def request(
    port: int,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Reply:
    """Send one request on a connection of its own and return the answer."""
    all_headers = {
        "host": f"127.0.0.1:{port}",
        "content-length": str(len(body)),
        "connection": "close",
    }
    all_headers |= dict(headers or {})
    head = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
    try:
        return parse(await asyncio.wait_for(reader.read(), WAIT_S))
    finally:
        writer.close()
        await writer.wait_closed()


def parse(data: bytes) -> Reply:
    """Return the answer in all the bytes of a connection."""
    head, _, body = data.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return Reply(int(status_line.split()[1]), headers, body)
