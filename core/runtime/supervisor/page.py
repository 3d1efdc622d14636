"""The supervisor's page of the board: which children there are, their epochs, states and pids.

Owns: filling the page from the tree. Never knows: who reads it. It is published when something
changed, and once a second so that its age says that the supervisor lives. Of a child that serves no
fault is shown, however its predecessor ended.
"""

from collections.abc import Callable, Mapping

import numpy as np

from core.clock import NS_PER_S
from core.runtime.supervisor.stage import Stage
from core.runtime.wiring import SUPERVISOR
from core.supervision.child import Child
from core.supervision.states import ProcessState
from core.supervision.tree import SupervisionTree
from ipc.board import BoardWriter
from ipc.pages import MAX_FAULT_BYTES, MAX_PAGE_CHILDREN, SUPERVISOR_PAGE


class SupervisorPage:
    """The page and when it was published last; `is_stopping` is set by the supervisor."""

    def __init__(self, stage: Stage, fault_of: Callable[[str], str]) -> None:
        """`fault_of(child_id)` is why its last instance has ended."""
        segment = stage.segments[stage.directory.board(SUPERVISOR)]
        self._writer = BoardWriter(segment, SUPERVISOR_PAGE, epoch=1)
        self._writer.page["http_port"] = stage.ports.http_port
        self._writer.page["admin_port"] = stage.ports.admin_port
        self._fault_of = fault_of
        self._shown: tuple[object, ...] = ()
        self._shown_ns = 0
        self.is_stopping = False

    def publish(self, tree: SupervisionTree, pids: Mapping[str, int], now_ns: int) -> None:
        """Show the children as they are now."""
        children = tree.children.values()
        rows = tuple((*_standing(c, pids), self._fault(c)) for c in children)
        shown = (rows, self.is_stopping)
        if shown == self._shown and now_ns - self._shown_ns < NS_PER_S:
            return
        page = self._writer.page
        if not self._shown:
            page["started_ns"] = now_ns
        assert len(rows) <= MAX_PAGE_CHILDREN, len(rows)
        page["children"][: len(rows)] = np.array(list(rows), page["children"].dtype)
        page["num_children"] = len(rows)
        page["stopping"] = int(self.is_stopping)
        self._writer.publish(now_ns)
        self._shown, self._shown_ns = shown, now_ns

    def _fault(self, child: Child) -> bytes:
        """Return why a child does not serve, whole characters as far as there is room."""
        if child.state in (ProcessState.RUNNING, ProcessState.STOPPING, ProcessState.STOPPED):
            return b""
        cut = self._fault_of(child.spec.id).encode()[:MAX_FAULT_BYTES]
        return cut.decode(errors="ignore").encode()


def _standing(child: Child, pids: Mapping[str, int]) -> tuple[bytes, int, int, int, int, int]:
    """Return a row of `ipc.pages.CHILD` as far as the tree and the processes tell."""
    name = child.spec.id
    return (
        name.encode(), pids.get(name, 0), child.epoch, child.state, child.restarts,
        child.started_ns,
    )  # fmt: skip
