"""Ranks whose parts travel by torch.distributed: NCCL between GPUs, Gloo where there is none.

Owns: how they meet (a FileStore in the run directory, no TCP port), how parts travel, and the bound
on every wait. Never knows: what is exchanged. On a CPU the ranks of an engine use `socket_ranks`;
Gloo is here so that all but NCCL itself is tested.

An exchange is one collective on the current stream. It asks the host to wait for nothing, and its
result comes from torch's cache of device memory, or from a graph's own memory while one is
recorded: so graphs of decodes hold their exchanges. Small numbers that the host has (`agree`) take
the way over the device; they are exchanged while the model loads, never in a step.

When a rank dies, Gloo says so at once. NCCL's kernels wait on; the supervisor kills the other ranks
when it sees the death, and torch's watchdog ends a process whose exchange is late.
"""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from core.errors import RanksError


class CollectiveRanks:
    """See `core.parallel.ranks.Ranks`; one in a process, for the group is the process's."""

    def __init__(
        self,
        meeting_place: Path,
        rank: int,
        size: int,
        device: torch.device,
        *,
        join_s: float,
        exchange_s: float,
    ) -> None:
        """Parts are on `device`; `join_s` bounds the wait for the others, `exchange_s` each
        exchange, s.
        """
        assert 0 <= rank < size, (rank, size)
        self.rank = rank
        self.size = size
        self._device = device
        self._meeting_place = meeting_place
        self._join = datetime.timedelta(seconds=join_s)
        self._exchange = datetime.timedelta(seconds=exchange_s)

    def join(self) -> None:
        """Meet the others at the meeting place: nobody connects before all are there."""
        with _named(f"rank {self.rank} waits for the others"):
            store = self._meet()
            dist.init_process_group(
                "nccl" if self._device.type == "cuda" else "gloo",
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=self._exchange,
            )
        self.gather(torch.zeros(1))

    def gather(self, part: Tensor) -> Tensor:
        """Return everybody's part, where the part is; what travels are bytes, so any dtype does."""
        sent = part.to(self._device).contiguous()
        everybody = torch.empty(self.size, *part.shape, dtype=part.dtype, device=self._device)
        with _named(f"rank {self.rank} exchanges with the others"):
            dist.all_gather_single(_bytes_of(everybody), _bytes_of(sent))
        return everybody.to(part.device)

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _meet(self) -> Any:
        """Return the store that all have come to; rank 0 removes those of dead predecessors."""
        place = self._meeting_place
        if self.rank == 0:
            for left in set(place.parent.glob(f"{place.stem}.*")) - {place}:
                left.unlink(missing_ok=True)
        store = dist.FileStore(str(place), self.size)  # type: ignore[attr-defined]
        store.set(f"rank {self.rank}", "here")
        store.wait([f"rank {rank}" for rank in range(self.size)], self._join)
        return store


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@contextmanager
def _named(doing: str) -> Iterator[None]:
    """Give a fault of the group its name; torch has a family of RuntimeErrors for them."""
    try:
        yield
    except RuntimeError as error:
        raise RanksError(f"{doing}: {' '.join(str(error).split())[:200]}") from error
