"""One operation on its way through an http process: what was asked, what came when, what it used.

Owns: what is noted of it. Never knows: who reads that. An answer notes what comes; metrics and
traces are made of it.
"""

from dataclasses import dataclass, field

from core.messages.http import Queued, Started
from core.messages.tokenizer import Generate
from frontends.http.errors import ApiError
from frontends.http.telemetry import StreamTimer
from frontends.openai.answers import Usage

CLIENT_GONE = "client_gone"


@dataclass(slots=True)
class Passage:
    """What is known of an operation; times are CLOCK_MONOTONIC ns, 0 = it has not happened."""

    message: Generate
    timer: StreamTimer
    is_stream: bool
    usage: Usage = field(init=False)
    queued_ns: int = 0
    started_ns: int = 0
    error: ApiError | None = None  # that its client was told

    def __post_init__(self) -> None:
        """Begin without any usage."""
        self.usage = Usage(self.message.n)

    @property
    def num_choices(self) -> int:
        """Choices of all prompts together."""
        return len(self.message.prompts) * self.message.n

    @property
    def fault(self) -> str:
        """What went wrong, by the code that the client was told; "" = nothing did."""
        if self.error is not None:
            return self.error.code or self.error.type
        return "" if self.timer.ended_ns else CLIENT_GONE

    def note(self, got: Queued | Started, now_ns: int) -> None:
        """Take in a word of the engine that brings no output; twice is the same as once."""
        if isinstance(got, Queued):
            self.timer.traffic_class = got.traffic_class
            self.queued_ns = self.queued_ns or now_ns
        elif not self.started_ns:
            self.started_ns = now_ns
            self.queued_ns = now_ns - got.queue_ns

    def phases(self, ended_ns: int) -> list[tuple[str, int, int]]:
        """Return the phases that it came to: name, begin and end."""
        found = []
        if self.queued_ns:
            found.append(("queue", self.queued_ns, self.started_ns or ended_ns))
        if self.started_ns:
            found.append(("prefill", self.started_ns, self.timer.first_ns or ended_ns))
        if self.timer.first_ns:
            found.append(("decode", self.timer.first_ns, ended_ns))
        return found
