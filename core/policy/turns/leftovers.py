"""What a step left unused, and why; and why a request waits.

Owns: unused tokens by reason, counted over all steps, and the last reason of each flow. Never
knows: a waiting request before somebody asks for one. The tokens that a step leaves are put down
to what ended it: a promised gap, or else the first in turn that could have used them and was
blocked. If nobody waited they are put down to NOTHING.
"""

import numpy as np

from core.policy.base import Blocked, Step, Wait
from core.policy.fairness.shares import Shares
from core.policy.queues.flows import Flows
from core.policy.turns.contenders import Contenders
from core.request import Request


class Leftovers:
    """All replicas together; the last step of any of them explains the waiting."""

    def __init__(self, flows: Flows, shares: Shares, max_tokens: int) -> None:
        """Start with no step; none takes more than `max_tokens`."""
        self.tokens = np.zeros(len(Blocked), np.int64)  # left unused, by reason
        self._flows = flows
        self._shares = shares
        self._max_tokens = max_tokens
        self._capacity: dict[int, int] = {}  # by replica
        self._ended = Blocked.NOTHING
        self.last: Contenders | None = None

    def capacity(self, replica: int) -> int:
        """Return how many tokens a step of `replica` takes, as far as is known."""
        return self._capacity.get(replica, self._max_tokens)

    def note(self, step: Step, contenders: Contenders, ended: Blocked) -> Blocked:
        """Take in how a step was left: `ended` says what its budget was short of, if it was.

        Returns what kept it from giving more, to whoever could have used that first.
        """
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
        self.last = contenders
        short_of = contenders.first_blocked() if ended is Blocked.NOTHING else ended
        if left > 0:
            self.tokens[short_of] += left
        return short_of

    def by_reason(self) -> dict[Blocked, int]:
        """Return the tokens left unused so far while somebody waited."""
        counts = dict(zip(Blocked, self.tokens.tolist(), strict=True))
        return {reason: n for reason, n in counts.items() if n and reason is not Blocked.NOTHING}

    def why(self, request: Request) -> Wait | None:
        """Return why a waiting `request` was not started by the last step, None without one."""
        if self.last is None:
            return None
        flow, place = request.flow, self._flows.rank(request)
        blocked = self.last.reason(flow)
        if blocked is not Blocked.NOTHING:
            return Wait(blocked, place=place)
        lead, window = self._shares.lead(flow)
        if lead > window:
            return Wait(Blocked.WINDOW, lead, window, place)
        if place:
            return Wait(Blocked.DEADLINE_ORDER, place=place)
        if self._ended is Blocked.TOKENS:
            return Wait(Blocked.TOKENS, self._max_tokens, self._max_tokens)
        if self._ended is Blocked.NOTHING and request.num_preemptions:
            return Wait(Blocked.MEMORY, place=place)  # the step itself took its memory
        return Wait(self._ended)
