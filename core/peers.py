"""Who lives: the supervisor's page and the heartbeats, read together.

Owns: the answer to "which instance of that child is there now". Never knows: what follows from a
change. The page says whom the supervisor started last and whether it has a process; the heartbeat
line says which instance has taken up its work.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from core.supervision.states import ProcessState
from ipc.board import BoardReader


@dataclass(frozen=True, slots=True)
class Peer:
    """One child at one look; an epoch of 0 means that there is none.

    `living_epoch` counts from the moment before the process exists until its death is noticed,
    `serving_epoch` only once it is ready for work.
    """

    living_epoch: int = 0
    serving_epoch: int = 0
    is_given_up: bool = False


class PeerTable(Protocol):
    """Anything that knows the children of an engine."""

    def look(self) -> None:
        """Read the newest state."""
        ...

    def peer(self, child_id: str) -> Peer:
        """Return a child as the last look found it; all zeros if it is not known."""
        ...


class BoardPeers:
    """The children as the board shows them; `serving_epoch(child_id)` reads a heartbeat line."""

    def __init__(self, page: BoardReader, serving_epoch: Callable[[str], int]) -> None:
        self._page = page
        self._serving_epoch = serving_epoch
        self._living: dict[str, Peer] = {}  # serving as soon as the heartbeat says so
        self._shown = 0  # sequence of the page that is known

    def look(self) -> None:
        """Read the page; most of the time it is the one that is known."""
        shown = self._page.read()
        if shown.sequence == self._shown:
            return
        self._shown = shown.sequence
        children = shown.page["children"][: int(shown.page["num_children"])]
        columns = (children[key].tolist() for key in ("name", "epoch", "state"))
        for name, epoch, state in zip(*columns, strict=True):
            living = epoch if ProcessState(state).has_process else 0
            is_given_up = state == ProcessState.GIVEN_UP
            self._living[name.decode()] = Peer(living, living, is_given_up)

    def peer(self, child_id: str) -> Peer:
        """Return a child: its life as at the last look, its service as it is now."""
        peer = self._living.get(child_id, Peer())
        if peer.living_epoch == 0 or self._serving_epoch(child_id) == peer.living_epoch:
            return peer
        return replace(peer, serving_epoch=0)
