"""Streams that run in threads beside a test, and remember all they were told.

Owns: the threads and what each stream has seen. Never knows: what should have happened.
"""

import http.client
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.processes.engine import Client, Json, wait_until

JOIN_TIMEOUT_S = 180.0


@dataclass(slots=True)
class Stream:
    """One streaming completion; the lists grow while it runs."""

    body: Json
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    completion_tokens: int = -1  # as the usage says, if it was asked for
    error: Json | None = None  # an error event
    refusal: Json | None = None  # an error status instead of a stream
    is_broken: bool = False  # the connection ended in the middle
    thread: threading.Thread | None = None

    def run(self, client: Client) -> None:
        """Read to the end, however it ends."""
        try:
            for event in client.stream("/v1/completions", self.body):
                self.take(event)
        except AssertionError as refusal:
            self.refusal = {"status": refusal.args[0][0]}
        except (OSError, http.client.HTTPException):
            self.is_broken = True

    def take(self, event: Json) -> None:
        """Note one event."""
        if "error" in event:
            self.error = event["error"]
            return
        if event.get("usage"):
            self.completion_tokens = event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            self.token_ids += choice.get("token_ids") or []
            self.text += choice["text"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason


def start_streams(client: Client, bodies: Sequence[Json]) -> list[Stream]:
    """Start a stream for each body, each in a thread."""
    streams = [Stream(body) for body in bodies]
    for stream in streams:
        stream.thread = threading.Thread(target=stream.run, args=(client,), daemon=True)
        stream.thread.start()
    return streams


def wait_for_tokens(streams: Sequence[Stream], count: int) -> None:
    """Return when every stream has at least `count` tokens."""
    wait_until(lambda: all(len(s.token_ids) >= count for s in streams), f"{count} tokens each")


def join(streams: Sequence[Stream]) -> list[Stream]:
    """Wait until all streams have ended; AssertionError if one hangs."""
    for stream in streams:
        assert stream.thread is not None
        stream.thread.join(JOIN_TIMEOUT_S)
        assert not stream.thread.is_alive(), f"a stream hangs after {len(stream.token_ids)} tokens"
    return list(streams)
