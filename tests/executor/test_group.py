"""What ranks settle while they load: devices of one kind, and one number of blocks."""

from dataclasses import dataclass, replace
from typing import cast

import pytest
import torch
from torch import Tensor

from core.errors import StartError
from core.executor.device import Device
from core.executor.group import expect_alike, shared_budget, smallest_budget, sum_of_all
from core.executor.kv_budget import SAFETY_BYTES, KvDemand, budget_kv
from core.parallel.ranks import ALONE

DEMAND = KvDemand(
    block_bytes=1000,
    weights_bytes=5000,
    workspace_bytes=0,
    replicas=1,
    num_blocks=0,
    min_blocks=1,
    memory_fraction=0.5,
    limit_bytes=2**40,
)
FREE_BYTES = 2**31


@dataclass
class SecondOf:
    """A group of two as its second rank sees it: the first always says `first`."""

    first: Tensor
    rank: int = 1
    size: int = 2

    def join(self) -> None:
        """They have met."""

    def gather(self, part: Tensor) -> Tensor:
        """Return both parts."""
        return torch.stack((self.first.to(part.dtype), part))


@dataclass
class Named:
    """As much of a device as has a name."""

    name: str


def test_ranks_on_devices_of_two_kinds_are_refused() -> None:
    """Each draws the tokens of all: the message names what one of them is on."""

    class Apart(SecondOf):
        def gather(self, part: Tensor) -> Tensor:
            return torch.stack((part + 1, part))

    device = cast(Device, Named("GPU B"))
    with pytest.raises(StartError, match="rank 1 of the replica is on GPU B, rank 0 on another"):
        expect_alike(device, Apart(torch.zeros(())))


def test_who_is_alone_is_like_himself() -> None:
    """One rank asks nobody."""
    expect_alike(cast(Device, Named("GPU A")), ALONE)
    assert sum_of_all(7, ALONE) == 7


def test_ranks_with_memory_of_their_own_take_what_the_least_can_have() -> None:
    """The number of blocks is one for all, and so is the table's last line."""
    own = budget_kv(FREE_BYTES, DEMAND).num_blocks
    for first, expected in ((own - 9, own - 9), (own + 9, own)):
        budget = smallest_budget(DEMAND, FREE_BYTES, SecondOf(torch.tensor(first)))
        assert budget.num_blocks == expected
        assert dict(budget.table)["KV pool"] == expected * DEMAND.block_bytes


def test_ranks_that_share_memory_add_up_what_they_need() -> None:
    """Of what was found free the most counts."""
    first = torch.tensor([1000, 5000, 0, FREE_BYTES])
    budget = shared_budget(DEMAND, FREE_BYTES // 2, SecondOf(first))
    left = FREE_BYTES - 2 * 5000 - 2 * SAFETY_BYTES
    assert budget.num_blocks == int(left * DEMAND.memory_fraction) // 2000


def test_the_memory_of_a_replica_is_that_of_all_its_ranks() -> None:
    """Each process keeps its own safety; the blocks are the same on all."""
    demand = replace(DEMAND, weights_bytes=0)
    one, two = (budget_kv(FREE_BYTES, replace(demand, ranks=ranks)) for ranks in (1, 2))
    assert one.num_blocks - two.num_blocks == pytest.approx(0.5 * SAFETY_BYTES / 1000, abs=1)
