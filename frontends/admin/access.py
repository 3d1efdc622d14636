"""Who may give control commands: deny by default.

    the admin key              allowed
    a tenant's key             forbidden: it is known, but opens nothing here
    no key, an unknown key     unauthenticated

Owns: this decision, over the newest tenant directory. Never knows: commands, sockets. Keys are
compared by their SHA-256 in constant time and are never kept, logged or echoed.
"""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from ipc.control.declaration import ReplyCode
from ipc.directory import DirectorySnapshot

MAX_KEY_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a caller is turned away; the message never repeats what the caller sent."""

    code: ReplyCode
    message: str


class Access:
    """Decides on keys; `read_directory` returns the same snapshot object while nothing changed."""

    def __init__(self, read_directory: Callable[[], DirectorySnapshot]) -> None:
        """Look keys up in the directory as it is at each call."""
        self._read_directory = read_directory
        self._snapshot = DirectorySnapshot()
        self._tenant_digests: frozenset[str] = frozenset()

    def refusal(self, key: str) -> Refusal | None:
        """Return why the bearer of `key` is turned away, or None if it is the admin."""
        self._refresh()
        if not key or len(key) > MAX_KEY_CHARACTERS:
            return Refusal(ReplyCode.UNAUTHENTICATED, "the admin key is needed")
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        if hmac.compare_digest(digest, self._snapshot.admin_key_sha256):
            return None
        if digest in self._tenant_digests:
            return Refusal(ReplyCode.FORBIDDEN, "a tenant's key cannot give control commands")
        return Refusal(ReplyCode.UNAUTHENTICATED, "this is not the admin key")

    def _refresh(self) -> None:
        snapshot = self._read_directory()
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._tenant_digests = frozenset(
                digest for tenant in snapshot.tenants for digest in tenant.key_sha256
            )
