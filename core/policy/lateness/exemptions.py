"""Who is not refused for being late, or not by prediction.

Owns: what tenants have used of their budgets lately, and what each replica was short of. Never
knows: who is late.

    never            classes that are not sheddable
    not predicted    those of a tenant within a token-rate budget of its own, which is what it was
                     promised, or of a class with reserved sequences left where others wait for
                     sequences: the rate at which those start is not its own
"""

from math import exp

from core.clock import NS_PER_S
from core.policy.base import Blocked
from core.policy.limits import Limits
from core.policy.queues.flows import Flows
from core.request import Request
from core.tenancy.classes import NUM_CLASSES

MINUTE_NS = 60 * NS_PER_S


class Exemptions:
    """Those of one policy."""

    def __init__(self, limits: Limits, flows: Flows) -> None:
        """Start with nothing used; `flows` tell what runs."""
        self._limits = limits
        self._flows = flows
        self._used_tokens: dict[int, tuple[float, int]] = {}  # by tenant: in a minute, until when
        self._short_of: dict[int, Blocked] = {}  # by replica: what kept its last step from more

    def configure(self, limits: Limits) -> None:
        """Take over budgets, reserves, and which classes may be refused."""
        self._limits = limits

    def started(self, request: Request, now_ns: int) -> None:
        """Count what its tenant uses of its budget."""
        used = self._used(request.tenant_index, now_ns) + request.num_tokens
        self._used_tokens[request.tenant_index] = (used, now_ns)

    def forget_tenant(self, index: int) -> None:
        """Let the next tenant of this index have used nothing."""
        self._used_tokens.pop(index, None)

    def filled(self, replica: int, short_of: Blocked) -> None:
        """Take in what a step was short of."""
        self._short_of[replica] = short_of

    def lose(self, replica: int) -> None:
        """Forget a replica that is gone."""
        self._short_of.pop(replica, None)

    def may_be_refused(self, request: Request) -> bool:
        """Tell whether `request` is refused at all for being late."""
        return self._limits.of(request.traffic_class).sheddable

    def may_be_predicted(self, request: Request, now_ns: int) -> bool:
        """Tell whether `request` is refused because it would be late behind others."""
        budget = self._limits.tenant(request.tenant).tokens_per_minute
        if budget > 0 and self._used(request.tenant_index, now_ns) < budget:
            return False
        return self.may_be_refused(request) and not self._has_sequences_left(request.flow)

    def _used(self, tenant_index: int, now_ns: int) -> float:
        """Return the prompt tokens that a tenant has started in about the last minute."""
        used, until_ns = self._used_tokens.get(tenant_index, (0.0, 0))
        return used * exp(-(now_ns - until_ns) / MINUTE_NS)

    def _has_sequences_left(self, flow: int) -> bool:
        """Tell whether others wait for sequences, of which the class of `flow` has reserved some
        that it does not use.
        """
        if Blocked.SEQUENCES not in self._short_of.values():
            return False
        of_class = slice(flow % NUM_CLASSES, None, NUM_CLASSES)
        reserved = self._limits.of(flow % NUM_CLASSES).reserved_seqs
        return int(self._flows.num_running[of_class].sum()) < reserved
