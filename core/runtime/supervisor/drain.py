"""Waiting for the running requests at shutdown.

Owns: telling the scheduler to drain, and the deadline. Never knows: what is stopped afterwards. A
scheduler that restarts meanwhile is told again; the end is read from its page.
"""

from core.clock import NS_PER_MS
from core.runtime.supervisor.stage import Stage
from ipc.board import BoardReader
from ipc.codec import Codec
from ipc.messages import ControlCall, ControlReply
from ipc.pages import SCHEDULER_PAGE
from ipc.ports import Context, DealerPort

REPEAT_NS = 200 * NS_PER_MS


class Drain:
    """The way to the scheduler, connected from the start so that a drain is heard at once."""

    def __init__(self, context: Context, stage: Stage) -> None:
        segment = stage.segments[stage.directory.board("scheduler")]
        self._page = BoardReader(segment, SCHEDULER_PAGE)
        self._port: DealerPort[ControlReply, ControlCall] = DealerPort(
            context,
            stage.directory.scheduler_url,
            b"supervisor.0.1",
            Codec[ControlReply](ControlReply),
            Codec[ControlCall](ControlCall),
        )
        self._deadline_ns: int | None = None
        self._asked_ns = 0

    @property
    def is_running(self) -> bool:
        """Whether the engine waits for its running requests."""
        return self._deadline_ns is not None

    def begin(self, deadline_ns: int) -> None:
        """Refuse new requests, and wait for the others until `deadline_ns`."""
        self._deadline_ns = deadline_ns

    def shorten(self, deadline_ns: int) -> None:
        """Wait no longer than until `deadline_ns`, if it waits at all."""
        if self._deadline_ns is not None:
            self._deadline_ns = min(self._deadline_ns, deadline_ns)

    def is_done(self, now_ns: int) -> bool:
        """Ask until the scheduler drains; True = no request is left, or it is too late."""
        if self._deadline_ns is None:
            return False
        if now_ns >= self._deadline_ns:
            return True
        page = self._page.read().page
        if page["draining"]:
            return not any(page[f"num_{kind}"] for kind in LIVE)
        if now_ns - self._asked_ns >= REPEAT_NS and self._port.send(ControlCall(1, "drain")):
            self._asked_ns = now_ns
        self._port.receive(limit=64)
        return False

    def close(self) -> None:
        """Close the connection to the scheduler."""
        self._port.close()


LIVE = ("waiting", "running", "preempted", "swapped")
"""The requests of a scheduler's page that still want to be served."""
