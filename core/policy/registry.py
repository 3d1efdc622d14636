"""The policies by the names the configuration uses."""

from core.policy.base import Policy
from core.policy.fcfs import FcfsPolicy
from core.policy.ordered import PolicySettings
from core.policy.priority import PriorityPolicy
from core.policy.static import StaticPolicy


def make_policy(name: str, settings: PolicySettings) -> Policy:
    """Return a new policy called `name`; raises KeyError for another name."""
    policies = {"fcfs": FcfsPolicy, "priority": PriorityPolicy, "static": StaticPolicy}
    return policies[name](settings)
