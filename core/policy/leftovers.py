"""What a step left unused, and why; and why a request waits.

Owns: unused tokens by reason, counted over all steps, and the last reason of each flow. Never
knows: a waiting request before somebody asks for one. The tokens that a step leaves are put down
to what ended it: a promised gap, or else the first in turn that could have used them and was
blocked. Nothing is put down if nobody waited.
"""

import numpy as np

from core.policy.base import Blocked, Step, Wait
from core.policy.contenders import Contenders
from core.policy.flows import Flows
from core.policy.shares import Shares
from core.request import Request


class Leftovers:
    """All replicas together; the last step of any of them explains the waiting."""

    def __init__(self, flows: Flows, shares: Shares, max_tokens: int) -> None:
        """Start with no step; none takes more than `max_tokens`."""
        self.tokens = np.zeros(len(Blocked), np.int64)  # by reason
        self._flows = flows
        self._shares = shares
        self._max_tokens = max_tokens
        self._capacity: dict[int, int] = {}  # by replica
        self._ended = Blocked.NOTHING
        self._blocked: dict[int, Blocked] = {}
        self._claim: Request | None = None

    def capacity(self, replica: int) -> int:
        """Return how many tokens a step of `replica` takes, as far as is known."""
        return self._capacity.get(replica, self._max_tokens)

    def note(self, step: Step, contenders: Contenders, ended: Blocked) -> None:
        """Take in how a step was left: `ended` says what its budget was short of, if it was."""
        left, replica = step.tokens_left, step.replica
        used = self._max_tokens - left
        if left <= 0:
            ended = Blocked.TOKENS
            self._capacity[replica] = self._max_tokens
        elif ended is not Blocked.NOTHING:
            self._capacity[replica] = max(1, used)
        else:
            self._capacity[replica] = max(self.capacity(replica), used)
        self._ended = ended
        self._blocked = contenders.blocked
        self._claim = contenders.claim
        if left > 0:
            first = next(iter(contenders.blocked.values()), Blocked.NOTHING)
            self.tokens[first if ended is Blocked.NOTHING else ended] += left

    def why(self, request: Request) -> Wait:
        """Return why a waiting `request` was not started by the last step."""
        flow = request.flow
        place = self._flows.rank(request)
        blocked = self._blocked.get(flow, Blocked.NOTHING)
        if blocked is not Blocked.NOTHING:
            return Wait(blocked, place=place)
        if self._ended is Blocked.NOTHING and self._claim is not None:
            return Wait(Blocked.CLAIM, place=place)
        if not self._shares.is_within(flow) or not self._shares.is_class_within(flow % 4):
            lead, window = self._shares.over_share(flow), self._shares.tenant_window
            return Wait(Blocked.WINDOW, lead, window, place)
        closed = [b for b in self._blocked.values() if b in (Blocked.SEQUENCES, Blocked.DRAINING)]
        ended = closed[0] if closed else self._ended
        return Wait(Blocked.DEADLINE_ORDER if place else ended, place=place)
