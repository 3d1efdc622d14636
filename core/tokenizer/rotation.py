"""Tenants in turn: who is next when everyone has work for one worker.

Owns: a queue a tenant and their order. Never knows: what the work is, or how much of it. A tenant
that comes back from its turn stands behind all others, so a long text waits between its pieces and
a tenant with a thousand prompts delays another's single one by one piece.
"""

from collections import deque
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class Rotation(Generic[ItemT]):
    """Round-robin over tenants, first in first out within one; bounded by its owner."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[ItemT]] = {}  # in the order of their next turn
        self._num_items = 0

    def __len__(self) -> int:
        return self._num_items

    def add(self, tenant: str, item: ItemT) -> None:
        """Queue an item behind the tenant's others."""
        self._queues.setdefault(tenant, deque()).append(item)
        self._num_items += 1

    def put_back(self, tenant: str, item: ItemT) -> None:
        """Return an unfinished item: the tenant's next, but only after everyone else's turn."""
        queue = self._queues.pop(tenant, None) or deque()
        queue.appendleft(item)
        self._queues[tenant] = queue
        self._num_items += 1

    def take(self) -> ItemT | None:
        """Remove and return the next item, or None; its tenant moves to the end of the turn."""
        for tenant in self._queues:
            queue = self._queues.pop(tenant)
            item = queue.popleft()
            if queue:
                self._queues[tenant] = queue
            self._num_items -= 1
            return item
        return None
