"""Who may give control commands: deny by default.

    the admin key              allowed
    a tenant's key             forbidden: it is known, but opens nothing here
    no key, an unknown key     unauthenticated

Keys are compared by their SHA-256 in constant time and are never kept, logged or echoed.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ipc.control.declaration import ReplyCode

MAX_KEY_CHARACTERS = 512
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a caller is turned away; the message never repeats what the caller sent."""

    code: ReplyCode
    message: str


@dataclass(frozen=True, slots=True)
class Access:
    """The admin key's digest, and a way to recognize tenants' keys by theirs (both lower-case
    hex)."""

    admin_key_sha256: str
    is_tenant_key: Callable[[str], bool]

    def refusal(self, key: str) -> Refusal | None:
        """Return why the bearer of `key` is turned away, or None if it is the admin."""
        if not key or len(key) > MAX_KEY_CHARACTERS:
            return Refusal(ReplyCode.UNAUTHENTICATED, "the admin key is needed")
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        if hmac.compare_digest(digest, self.admin_key_sha256):
            return None
        if self.is_tenant_key(digest):
            return Refusal(ReplyCode.FORBIDDEN, "a tenant's key cannot give control commands")
        return Refusal(ReplyCode.UNAUTHENTICATED, "this is not the admin key")


def bearer_key(headers: Mapping[str, str]) -> str:
    """Return the key of an Authorization header, or "" if there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


@dataclass(frozen=True, slots=True)
class Origins:
    """Which Host and Origin headers are accepted; anything else may be a web page's doing."""

    hosts: frozenset[str]

    @classmethod
    def of(cls, host: str, others: Iterable[str] = ()) -> "Origins":
        """Accept loopback names, `host` and `others`."""
        return cls(LOOPBACK_NAMES | {host.lower()} | {other.lower() for other in others})

    def accepts(self, host: str, origin: str) -> bool:
        """Tell whether a request with these two headers ("" = absent) may be answered."""
        if host_name(host) not in self.hosts:
            return False
        return not origin or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def host_name(host: str) -> str:
    """Return a Host header without its port, lower case."""
    name, _, port = host.lower().rpartition(":")
    return name if name and port.isdigit() and not name.endswith(":") else host.lower()
