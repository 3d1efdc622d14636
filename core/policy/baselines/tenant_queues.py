"""Waiting requests by tenant, each tenant's in the order of their places.

Owns: which tenants have anybody waiting. Never knows: which tenant is next. A flood of one tenant
hides no other: each has a queue of its own.
"""

from core.policy.queues.place_queue import PlaceOf, PlaceQueue
from core.request import Request


class TenantQueues:
    """A place queue for each tenant, by tenant index, as long as somebody waits in it."""

    def __init__(self, place: PlaceOf) -> None:
        """Start with nobody waiting; `place` is as for a place queue."""
        self._place = place
        self._queues: dict[int, PlaceQueue] = {}

    def __contains__(self, tenant: int) -> bool:
        """Tell whether anybody of `tenant` waits."""
        return tenant in self._queues

    @property
    def tenants(self) -> list[int]:
        """Tenants of whom somebody waits."""
        return list(self._queues)

    def add(self, request: Request) -> None:
        """Let `request` wait."""
        queue = self._queues.get(request.tenant_index)
        if queue is None:
            queue = self._queues[request.tenant_index] = PlaceQueue(self._place)
        queue.add(request)

    def remove(self, request: Request) -> None:
        """Take a waiting `request` out."""
        queue = self._queues[request.tenant_index]
        queue.remove(request)
        if not len(queue):
            del self._queues[request.tenant_index]

    def first(self, tenant: int, count: int) -> list[Request]:
        """Return the first `count` waiting requests of `tenant`, in order."""
        return self._queues[tenant].first(count)

    def check_integrity(self) -> None:
        """Assert that no queue is empty and each is whole."""
        for queue in self._queues.values():
            assert len(queue)
            queue.check_integrity()
