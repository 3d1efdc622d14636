"""The hierarchy of shares: class, then tenant.

Owns: who was charged what at both levels, and which flows are within their windows. Never knows:
deadlines, memory, steps.
"""

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_MS
from core.policy.base import DecodeBatch
from core.policy.fair_queue import FairQueue, Mask
from core.policy.flows import Flows
from core.policy.limits import Limits
from core.policy.prices import Prices
from core.policy.settings import PolicySettings
from core.request import Request
from core.tenancy import NUM_CLASSES, TrafficClass


class Shares:
    """Charges and windows of all flows."""

    def __init__(self, settings: PolicySettings, flows: Flows, prices: Prices) -> None:
        """Start with nothing charged."""
        self.limits = settings.limits
        self.prices = prices
        self.charged = np.zeros(0, np.int64)  # by flow
        self.system_charged = 0  # work that had been done before
        self._flows = flows
        self._tuning = settings.tuning
        self._classes = FairQueue()
        self._tenants = [FairQueue() for _ in TrafficClass]
        self._classes.resize([self.limits.of(c).weight for c in TrafficClass])

    def configure(self, limits: Limits) -> None:
        """Let changed weights rule from now on."""
        self.limits = limits
        self._classes.resize([limits.of(c).weight for c in TrafficClass])
        self.resize()

    def resize(self) -> None:
        """Take in new tenants."""
        weights = [self.limits.tenant(name).weight for name in self._flows.tenant_names]
        if not weights:
            return
        for queue in self._tenants:
            queue.resize(weights)
        missing = len(weights) * NUM_CLASSES - len(self.charged)
        self.charged = np.concatenate([self.charged, np.zeros(missing, np.int64)])

    def look(self, flow: int) -> None:
        """Wake class and tenant of a flow that has work."""
        tenant, traffic_class = divmod(flow, NUM_CLASSES)
        self._classes.wake(traffic_class)
        self._tenants[traffic_class].wake(tenant)

    def charge_decodes(self, decodes: DecodeBatch) -> None:
        """Charge each decode in the step to its flow."""
        if len(decodes.tenant_index):
            flows = decodes.tenant_index * NUM_CLASSES + decodes.traffic_class
            charges = self.prices.decodes(decodes.context_tokens)
            amounts = np.bincount(flows, charges, len(self.charged)).astype(np.int64)
            self._charge(amounts)

    def charge_prefill(self, request: Request, context: int, num_tokens: int) -> None:
        """Charge computed prompt tokens; those computed before to the system."""
        if not num_tokens:
            return
        amounts = np.zeros(len(self.charged), np.int64)
        charge = self.prices.prefill(num_tokens, context)
        end = context + num_tokens
        again = min(max(request.num_charged_tokens - context, 0), num_tokens)
        redone = self.prices.prefill(again, context) if again else 0
        self.system_charged += redone
        amounts[request.flow] = charge - redone
        request.num_charged_tokens = max(request.num_charged_tokens, end)
        self._charge(amounts)

    def within(self, contending: Mask) -> Mask:
        """Return which of the `contending` flows, bool[flows], are inside both windows."""
        table = contending.reshape(-1, NUM_CLASSES)
        classes: Mask = np.logical_or.reduce(table, axis=0)
        self._classes.advance(classes)
        unit = max(1.0, self.prices.prefill_token)
        window = self._tuning.class_window_ms * NS_PER_MS
        if self._tuning.charge == "tokens":
            window = int(self._tuning.tenant_window_tokens * unit)
        eligible = self._classes.eligible(classes, window)
        within = np.zeros_like(table)
        tenant_window = int(self._tuning.tenant_window_tokens * unit)
        for traffic_class in np.flatnonzero(eligible).tolist():
            queue, column = self._tenants[traffic_class], table[:, traffic_class]
            queue.advance(column)
            within[:, traffic_class] = queue.eligible(column, tenant_window)
        return within.reshape(-1)

    def _charge(self, amounts: npt.NDArray[np.int64]) -> None:
        self.charged += amounts
        table = amounts.reshape(-1, NUM_CLASSES)
        self._classes.charge_all(table.sum(axis=0))
        for traffic_class, queue in enumerate(self._tenants):
            if table[:, traffic_class].any():
                queue.charge_all(table[:, traffic_class])
