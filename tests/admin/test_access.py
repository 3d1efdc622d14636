"""Who may give control commands."""

import hashlib

import pytest

from frontends.admin.access import Access
from ipc.control.declaration import ReplyCode
from ipc.directory import DirectorySnapshot, DirectoryTenant


def digest(key: str) -> str:
    """Return the SHA-256 of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


SNAPSHOT = DirectorySnapshot(
    version=1,
    tenants=(DirectoryTenant(name="acme", key_sha256=(digest("hr-tenant-1"),)),),
    admin_key_sha256=digest("hr-admin-1"),
)


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("hr-admin-1", None),
        ("hr-tenant-1", ReplyCode.FORBIDDEN),
        ("", ReplyCode.UNAUTHENTICATED),
        ("wrong", ReplyCode.UNAUTHENTICATED),
        (digest("hr-admin-1"), ReplyCode.UNAUTHENTICATED),
        ("hr-admin-1 ", ReplyCode.UNAUTHENTICATED),
        ("\ud800", ReplyCode.UNAUTHENTICATED),
        ("a" * 100_000, ReplyCode.UNAUTHENTICATED),
    ],
)
def test_only_the_admin_key_opens(key: str, code: ReplyCode | None) -> None:
    """A tenant's key is forbidden, everything else is unknown; no answer repeats the key."""
    refusal = Access(lambda: SNAPSHOT).refusal(key)
    assert (refusal.code if refusal else None) == code
    assert refusal is None or not key or key not in refusal.message


def test_without_a_directory_nobody_gets_in() -> None:
    """An empty digest is no key, not even for an empty one."""
    access = Access(DirectorySnapshot)
    assert access.refusal("") is not None
    assert access.refusal("hr-admin-1") is not None


def test_a_changed_directory_counts_from_the_next_call_on() -> None:
    """A revoked key is refused without a restart."""
    snapshots = [SNAPSHOT]
    access = Access(lambda: snapshots[-1])
    assert access.refusal("hr-admin-1") is None
    snapshots.append(DirectorySnapshot(version=2, admin_key_sha256=digest("other")))
    assert access.refusal("hr-admin-1") is not None
    assert access.refusal("other") is None
