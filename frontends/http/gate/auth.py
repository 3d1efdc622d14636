"""Who is asking: from the bearer key to the tenant and the traffic class.

Owns: the index of key digests over the newest directory snapshot. Never knows: keys in clear beyond
one comparison, limits, or routes. Keys are compared by their SHA-256: the table is looked up by
digest and the stored digest is compared in constant time, so that neither step tells how much of a
guess was right. Without any key in the directory everybody is the tenant `default`, on loopback
only: elsewhere nobody gets in, even if the last key is removed while the engine runs.
"""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from core.tenancy.classes import TrafficClass
from core.tenancy.tenants import DEFAULT_TENANT
from frontends.bearer import bearer_key
from frontends.http.errors import bad_request, class_forbidden, invalid_api_key
from ipc.directory import DirectorySnapshot, DirectoryTenant

NO_DIGEST = "0" * 64
CLASS_NAMES = {traffic_class.name.lower(): traffic_class for traffic_class in TrafficClass}


@dataclass(frozen=True, slots=True)
class Tenant:
    """An authenticated tenant and what it may use."""

    name: str
    default_class: TrafficClass
    classes: frozenset[TrafficClass]

    @classmethod
    def of(cls, entry: DirectoryTenant) -> "Tenant":
        """Return the tenant of a directory entry."""
        return cls(
            name=entry.name,
            default_class=CLASS_NAMES[entry.default_class],
            classes=frozenset(CLASS_NAMES[name] for name in entry.classes),
        )


ANYBODY = Tenant(DEFAULT_TENANT, TrafficClass.STANDARD, frozenset(TrafficClass))


class Authenticator:
    """Finds tenants; `read_directory` returns the same object while nothing has changed."""

    def __init__(
        self, read_directory: Callable[[], DirectorySnapshot], *, allow_anybody: bool
    ) -> None:
        self._read_directory = read_directory
        self._allow_anybody = allow_anybody
        self._snapshot: DirectorySnapshot | None = None
        self._tenants: dict[str, tuple[str, Tenant]] = {}
        self._anybody = ANYBODY

    def tenant_of(self, authorization: bytes | None) -> Tenant:
        """Return the tenant of an Authorization header; raises the 401."""
        self._refresh()
        if not self._tenants and self._allow_anybody:
            return self._anybody
        if authorization is None:
            raise invalid_api_key(
                "No API key was sent: use the header 'Authorization: Bearer KEY'."
            )
        key = bearer_key(authorization)
        if not key:
            raise invalid_api_key("The Authorization header is not of the form 'Bearer KEY'.")
        digest = hashlib.sha256(key).hexdigest()
        known, tenant = self._tenants.get(digest, (NO_DIGEST, None))
        if not hmac.compare_digest(known, digest) or tenant is None:
            raise invalid_api_key("The API key is not known here.")
        return tenant

    def _refresh(self) -> None:
        """Index a new snapshot."""
        snapshot = self._read_directory()
        if snapshot is self._snapshot:
            return
        self._snapshot = snapshot
        self._tenants = {
            digest: (digest, Tenant.of(entry))
            for entry in snapshot.tenants
            for digest in entry.key_sha256
        }
        named = {entry.name: entry for entry in snapshot.tenants}
        default = named.get(DEFAULT_TENANT)
        self._anybody = ANYBODY if default is None else Tenant.of(default)


SERVICE_TIERS: dict[str, TrafficClass | None] = {
    "auto": None,
    "default": None,
    "priority": TrafficClass.INTERACTIVE,
    "flex": TrafficClass.BATCH,
}
"""OpenAI's tiers; None = the tenant's default class."""


TIERS: dict[TrafficClass, str] = {
    TrafficClass.INTERACTIVE: "priority",
    TrafficClass.STANDARD: "default",
    TrafficClass.BATCH: "flex",
    TrafficClass.ADMINISTRATIVE: "default",
}
"""What a client that named a tier is told of the class that it got."""


def traffic_class_for(
    tenant: Tenant, header: bytes | None, service_tier: str | None
) -> TrafficClass:
    """Return the class a request runs in: the header's, else the tier's, else the tenant's own.

    Raises the 400 for an unknown name and the 403 for a class the tenant may not use.
    """
    if service_tier is not None and service_tier not in SERVICE_TIERS:
        names = ", ".join(SERVICE_TIERS)
        raise bad_request(
            f"The parameter 'service_tier' is unknown: use one of {names}.", "service_tier"
        )
    param, wanted = "service_tier", SERVICE_TIERS[service_tier or "auto"]
    if header is not None:
        param = "x-headrace-class"
        wanted = CLASS_NAMES.get(header.decode("latin-1").strip().lower())
        if wanted is None:
            names = ", ".join(CLASS_NAMES)
            raise bad_request(f"The class in '{param}' is unknown: use one of {names}.", param)
    if wanted is None:
        return tenant.default_class
    if wanted not in tenant.classes:
        raise class_forbidden(tenant.name, wanted, param)
    return wanted
