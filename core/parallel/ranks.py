"""The ranks of a replica: processes that compute one model together, step for step.

Owns: what they exchange. Never knows: what the numbers mean, or how they travel (`socket_ranks` on
a CPU, `collective_ranks` on GPUs). Every rank makes the same calls in the same order; whoever
decides something by a clock or a file must `agree` on it first, or the ranks wait for each other in
different places.

A sum is gathered and added up in the order of the ranks, on each of them: all have the same bits,
and an element's sum does not depend on where it lies in the message, as it does in a ring.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Ranks(Protocol):
    """The group, as one of its members sees it."""

    @property
    def rank(self) -> int:
        """Which one this is, 0 … size - 1; rank 0 answers the scheduler."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def join(self) -> None:
        """Wait until all are there; raises RanksError."""
        ...

    def gather(self, part: Tensor) -> Tensor:
        """Return everybody's `part` (the same shape and dtype on all): [size, …], rank by rank.

        Raises RanksError when one is gone or late.
        """
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """The one rank of a replica that is not divided."""

    rank: int = 0
    size: int = 1

    def join(self) -> None:
        """Nobody is waited for."""

    def gather(self, part: Tensor) -> Tensor:
        """Return the part, as a group of one."""
        return part.unsqueeze(0)


ALONE = Alone()


def sum_of(part: Tensor, ranks: Ranks) -> Tensor:
    """Return the sum of everybody's `part`, in the order of the ranks."""
    first, *others = ranks.gather(part).unbind()
    for other in others:
        first = first.add_(other)
    return first


def agree(number: int, ranks: Ranks) -> int:
    """Return the `number` of rank 0, on every rank."""
    return int(ranks.gather(torch.tensor([number]))[0])
