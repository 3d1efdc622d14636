"""Ranks as processes of this machine, over torch.distributed's gloo.

Owns: how they meet and the bound on every wait. They meet in a file of the run directory, one for
each instance of the group, so that nobody waits for a dead predecessor; their connections are on
the interface that GLOO_SOCKET_IFNAME names, at ports of the kernel's choice. Never knows: what is
exchanged. A rank that dies or falls silent is a RanksError on all others: the group is lost, and
its supervisor starts another one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from core.errors import RanksError


class GlooRanks:
    """See `core.parallel.ranks.Ranks`."""

    def __init__(
        self, meeting_place: Path, rank: int, size: int, *, join_s: float, exchange_s: float
    ) -> None:
        """`join_s` bounds the wait for the others, `exchange_s` each exchange, s."""
        self.rank = rank
        self.size = size
        self._meeting_place = meeting_place
        self._join = timedelta(seconds=join_s)
        self._exchange = timedelta(seconds=exchange_s)
        self._group: dist.ProcessGroupGloo | None = None

    def join(self) -> None:
        """Meet the others; who has met them all needs the file no longer."""
        names = [f"rank.{rank}" for rank in range(self.size)]
        with _named(f"rank {self.rank} waits for the others"):
            store = dist.FileStore(str(self._meeting_place), self.size)  # type: ignore[attr-defined]
            store.set(names[self.rank], "here")
            store.wait(names, self._join)
            self._group = dist.ProcessGroupGloo(store, self.rank, self.size, self._exchange)
        self.gather(torch.zeros(1))
        if self.rank == 0:
            self._meeting_place.unlink(missing_ok=True)

    def gather(self, part: Tensor) -> Tensor:
        """Return everybody's part; what travels are bytes, so any dtype does."""
        assert self._group is not None, "gather before join"
        everybody = torch.empty(self.size, *part.shape, dtype=part.dtype)
        places = list(everybody.view(torch.uint8).unbind())
        with _named(f"rank {self.rank} exchanges with the others"):
            own = part.contiguous().view(torch.uint8)
            self._group.allgather([places], [own]).wait()  # type: ignore[attr-defined]
        return everybody


@contextmanager
def _named(doing: str) -> Iterator[None]:
    """Give a fault of the group its name."""
    try:
        yield
    except RuntimeError as error:
        raise RanksError(f"{doing}: {' '.join(str(error).split())[:200]}") from error
