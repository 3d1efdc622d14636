"""What the ranks of a replica settle while they load: whether they fit together, and their memory.

Owns: what is said and what is made of it, the same on all. Never knows: how it travels, or what a
device is. Whoever finds a fault ends, and the supervisor ends the others.
"""

import hashlib
from dataclasses import replace

import torch

from core.errors import StartError
from core.executor.device import Device
from core.executor.kv_budget import KvBudget, KvDemand, budget_kv
from core.parallel.ranks import Ranks

DIGEST_BYTES = 7  # fit an int64


def expect_alike(device: Device, ranks: Ranks) -> None:
    """Raise StartError unless all ranks compute on devices of one name.

    Each draws the tokens of all by itself, which are the same only if their numbers are.
    """
    digest = hashlib.sha256(device.name.encode()).digest()[:DIGEST_BYTES]
    names = ranks.gather(torch.tensor(int.from_bytes(digest)))
    others = [rank for rank in range(ranks.size) if names[rank] != names[ranks.rank]]
    if others:
        raise StartError(
            f"rank {ranks.rank} of the replica is on {device.name}, rank {others[0]} on another"
            " device: engine.tensor_parallel needs devices of one kind"
        )


def sum_of_all(number: int, ranks: Ranks) -> int:
    """Return the sum of everybody's number."""
    return int(ranks.gather(torch.tensor(number)).sum())


def shared_budget(own: KvDemand, free_bytes: int, ranks: Ranks) -> KvBudget:
    """Return the budget of ranks that take of one memory.

    Of what they found free the most counts: whoever looked last may have looked when the others had
    their weights already. Raises StartError.
    """
    numbers = torch.tensor([own.block_bytes, own.weights_bytes, own.workspace_bytes, free_bytes])
    everybody = ranks.gather(numbers)
    block_bytes, weights_bytes, workspace_bytes, _ = everybody.sum(0).tolist()
    demand = replace(
        own,
        block_bytes=block_bytes,
        weights_bytes=weights_bytes,
        workspace_bytes=workspace_bytes,
        ranks=ranks.size,
    )
    return budget_kv(int(everybody[:, 3].max()), demand)


def smallest_budget(own: KvDemand, free_bytes: int, ranks: Ranks) -> KvBudget:
    """Return the budget of ranks that have memory of their own: as many blocks as the one with the
    least room can have. Raises StartError.
    """
    budget = budget_kv(free_bytes, own)
    num_blocks = int(ranks.gather(torch.tensor(budget.num_blocks)).min())
    pool = ("KV pool", num_blocks * own.block_bytes)
    return KvBudget(num_blocks, (*budget.table[:-1], pool))
