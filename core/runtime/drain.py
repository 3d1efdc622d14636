"""Waiting for the running requests at shutdown.

Owns: telling the scheduler to drain, and the deadline. Never knows: what is stopped afterwards. A
scheduler that restarts meanwhile is told again; the end is read from its page.
"""

from core.clock import NS_PER_MS
from core.runtime.stage import Stage
from ipc.board import BoardReader
from ipc.codec import Codec
from ipc.messages import ControlCall, ControlReply
from ipc.pages import SCHEDULER_PAGE
from ipc.ports import Context, DealerPort

REPEAT_NS = 200 * NS_PER_MS


class Drain:
    """One drain of the whole engine, until nothing is left or `deadline_ns`."""

    def __init__(self, context: Context, stage: Stage, deadline_ns: int) -> None:
        segment = stage.segments[stage.directory.board("scheduler")]
        self._page = BoardReader(segment, SCHEDULER_PAGE)
        self._port: DealerPort[ControlReply, ControlCall] = DealerPort(
            context,
            stage.directory.scheduler_url,
            b"supervisor.0.1",
            Codec[ControlReply](ControlReply),
            Codec[ControlCall](ControlCall),
        )
        self._deadline_ns = deadline_ns
        self._asked_ns = 0

    def is_done(self, now_ns: int) -> bool:
        """Ask again until the scheduler drains; True = no request is left, or it is too late."""
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
