"""Who lives: the supervisor's page and the heartbeats, read together.

Owns: the answer to "which instance of that child is there now". Never knows: what follows from a
change. The page says whom the supervisor started last and whether it has a process; the heartbeat
line says which instance has taken up its work.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
        """Return a child as it was at the last look; all zeros if it is not known."""
        ...


class BoardPeers:
    """The children as the board shows them; `serving_epoch(child_id)` reads a heartbeat line."""

    def __init__(self, page: BoardReader, serving_epoch: Callable[[str], int]) -> None:
        self._page = page
        self._serving_epoch = serving_epoch
        self._peers: dict[str, Peer] = {}

    def look(self) -> None:
        """Read the page, and the heartbeats of all children on it."""
        page = self._page.read().page
        children = page["children"][: int(page["num_children"])]
        names, epochs, states = (children[key].tolist() for key in ("name", "epoch", "state"))
        for name, epoch, state in zip(names, epochs, states, strict=True):
            child_id = name.decode()
            living = epoch if ProcessState(state).has_process else 0
            serving = living if living and self._serving_epoch(child_id) == living else 0
            self._peers[child_id] = Peer(living, serving, state == ProcessState.GIVEN_UP)

    def peer(self, child_id: str) -> Peer:
        """Return a child as it was at the last look."""
        return self._peers.get(child_id, Peer())
