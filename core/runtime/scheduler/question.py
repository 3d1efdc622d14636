"""A control command as the scheduler sees it: its checked arguments and all that may answer it.

Owns: how a person names a request. Never knows: which command it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from core.clock import NS_PER_MS
from core.engine_core import EngineCore
from core.scheduler.statistics import RequestView
from ipc.control.declaration import NotFoundError

Record = dict[str, object]


@dataclass(frozen=True, slots=True)
class Question:
    """A command; `operations` has the operation of each request, those that have just ended too."""

    core: EngineCore
    args: Mapping[str, object]
    operations: Mapping[int, str]
    now_ns: int

    def text(self, name: str) -> str | None:
        """Return an argument, None if it was not given."""
        return str(self.args[name]) if name in self.args else None

    def tenant(self) -> str | None:
        """Return the tenant that was asked for, None = all; raises NotFoundError if nobody is
        called so: neither a tenant nor, after it was removed, one of its requests.
        """
        tenant = self.text("tenant")
        if tenant is None or tenant in self.core.limits.tenants or self.live(tenant):
            return tenant
        raise NotFoundError(f"there is no tenant {tenant!r}: `tenants` lists them")

    def number(self, name: str, default: int) -> int:
        """Return an integer argument."""
        return int(str(self.args.get(name, default)))

    def live(self, tenant: str | None = None) -> list[RequestView]:
        """Return the live requests, of one tenant or all."""
        return self.core.requests(self.core.num_requests, tenant)

    def named(self, wanted: str) -> list[RequestView]:
        """Return the live requests that a person calls `wanted`: its number, or its operation's id,
        as it is or with the word and dash that clients see before it.
        """
        short = wanted.rpartition("-")[2]
        ids = [i for i, operation in self.operations.items() if operation == short]
        if wanted.isdecimal() and len(wanted) <= MAX_ID_DIGITS:
            ids.append(int(wanted))
        found = (self.core.request(request_id) for request_id in dict.fromkeys(ids))
        return [view for view in found if view is not None and not view.status.is_finished]

    def in_ms(self, time_ns: int) -> float | None:
        """Return how far away a moment is, ms; None for 0, which is no moment."""
        return (time_ns - self.now_ns) / NS_PER_MS if time_ns else None


MAX_ID_DIGITS = 20  # of a request's number, which is below 2**64
