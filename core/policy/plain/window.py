"""The prompts that compete for the tokens of one step.

Owns: which requests a policy that goes by places may choose from: the prompts under way and, as far
as the window has room, the first that wait. Never knows: how the choice is made.
"""

from core.policy.base import Blocked, Grant, Step
from core.policy.queues.place_queue import PlaceOf, PlaceQueue
from core.request import Request

_CLOSING = frozenset({Blocked.MEMORY, Blocked.SEQUENCES, Blocked.DRAINING})


class PrefillWindow:
    """At most `size` prompts.

    When a waiting request lacks memory or a row, no later one may take them: it has a claim.
    """

    def __init__(self, step: Step, queue: PlaceQueue, place: PlaceOf, size: int) -> None:
        """Open the window on `step`."""
        self.step = step
        self._queue = queue
        self._place = place
        self._size = size
        self._under_way = sorted(step.prefills(), key=place)
        self._passed_over: set[Request] = set()
        self._closed = not step.may_start_requests

    def first(self) -> Request | None:
        """Return the member with the smallest place."""
        return min(self._members(), key=self._place, default=None)

    def shortest(self) -> Request | None:
        """Return the member with the fewest tokens left to prefill; of equals, the first."""
        return min(
            self._members(),
            key=lambda request: (self.step.remaining(request), self._place(request)),
            default=None,
        )

    def settle(self, request: Request, grant: Grant) -> None:
        """Take in what came of a grant to `request`."""
        was_waiting = request not in self._under_way
        if grant.blocked in _CLOSING and was_waiting:
            self._closed = True
        elif grant.blocked != Blocked.NOTHING or self.step.remaining(request) == 0:
            self._passed_over.add(request)
        elif was_waiting:
            self._under_way.append(request)

    def _members(self) -> list[Request]:
        members = [request for request in self._under_way if request not in self._passed_over]
        room = self._size - len(members)
        if self._closed or room <= 0:
            return members
        waiting = self._queue.first(room + len(self._passed_over))
        return members + [r for r in waiting if r not in self._passed_over][:room]
