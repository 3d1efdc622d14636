"""The policies by the names the configuration uses."""

from collections.abc import Callable

from core.policy.base import Policy
from core.policy.headrace import HeadracePolicy
from core.policy.plain.fcfs import FcfsPolicy
from core.policy.plain.priority import PriorityPolicy
from core.policy.plain.static import StaticPolicy
from core.policy.settings import PolicySettings


def make_policy(name: str, settings: PolicySettings) -> Policy:
    """Return a new policy called `name`; raises KeyError for another name."""
    policies: dict[str, Callable[[PolicySettings], Policy]] = {
        "headrace": HeadracePolicy,
        "fcfs": FcfsPolicy,
        "priority": PriorityPolicy,
        "static": StaticPolicy,
    }
    return policies[name](settings)
