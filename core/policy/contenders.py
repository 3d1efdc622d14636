"""Whose turn it is in a step: class, then tenant, then request.

Owns: the heads of all flows in one step, prompts under way and waiting ones, and the choice between
them. Never knows: how many tokens fit.
"""

import numpy as np

from core.policy.base import Blocked, Grant, Step
from core.policy.flows import NOBODY_NS, Flows, due_ns
from core.policy.shares import Shares
from core.request import Request


class Contenders:
    """The heads of one step."""

    def __init__(self, step: Step, flows: Flows, shares: Shares) -> None:
        """Collect the prompts under way."""
        self._step = step
        self._flows = flows
        self._shares = shares
        self._may_start = step.may_start_requests
        self._under_way: dict[int, list[Request]] = {}
        for request in sorted(step.prefills(), key=due_ns, reverse=True):
            self._under_way.setdefault(request.flow, []).append(request)

    def next(self) -> Request | None:
        """Return whose turn it is; its grant must be settled before the next."""
        due = self._due()
        contending = due < NOBODY_NS
        if not contending.any():
            return None
        within = self._shares.within(contending)
        candidates = within if within.any() else contending
        flow = int(np.where(candidates, due, NOBODY_NS).argmin())
        return self._head(flow)

    def most_tokens(self, request: Request) -> int:
        """Return how many tokens one grant may give to `request`."""
        return self._step.tokens_left

    def settle(self, request: Request, grant: Grant) -> None:
        """Take in what came of a grant to `request`."""
        mine = self._under_way.get(request.flow, [])
        if mine and mine[-1] is request:
            if grant.blocked is not Blocked.NOTHING or self._step.remaining(request) == 0:
                mine.pop()
        elif grant.blocked is not Blocked.NOTHING:
            self._may_start = False
        elif self._step.remaining(request):
            self._under_way.setdefault(request.flow, []).append(request)

    def _due(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        due = self._flows.due_ns if self._may_start else np.full(len(self._flows), NOBODY_NS)
        due = due.copy()
        for flow, requests in self._under_way.items():
            if requests:
                due[flow] = min(int(due[flow]), due_ns(requests[-1]))
        return due

    def _head(self, flow: int) -> Request | None:
        under_way = self._under_way.get(flow)
        waiting = self._flows.head(flow) if self._may_start else None
        if not under_way:
            return waiting
        if waiting is None or due_ns(under_way[-1]) <= due_ns(waiting):
            return under_way[-1]
        return waiting
