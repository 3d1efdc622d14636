"""Block digests: what goes in decides the name, and nothing else does."""

import numpy as np

from core.kv_cache.digest import (
    DIGEST_BYTES,
    chain_digests,
    join_digests,
    namespace_digest,
    split_digests,
)

SECRET = b"of this boot"
IDS = np.arange(20, dtype=np.int32)


def test_a_chain_has_one_digest_for_each_full_block() -> None:
    """A chain has one 16-byte digest for each full block and none for the rest."""
    digests = chain_digests(SECRET, b"", IDS, 8)
    assert [len(digest) for digest in digests] == [DIGEST_BYTES, DIGEST_BYTES]


def test_a_digest_covers_everything_before_it() -> None:
    """A digest changes with any token before the end of its block, also in earlier blocks."""
    other = IDS.copy()
    other[0] += 1
    ours, theirs = (chain_digests(SECRET, b"", ids, 8) for ids in (IDS, other))
    assert ours[0] != theirs[0]
    assert ours[1] != theirs[1]


def test_a_chain_can_be_continued_from_any_digest() -> None:
    """The digest of a block follows from its parent's digest and its own tokens alone."""
    first, second = chain_digests(SECRET, b"start", IDS[:16], 8)
    assert chain_digests(SECRET, first, IDS[8:16], 8) == [second]


def test_another_secret_gives_other_digests() -> None:
    """Without the secret of the boot a digest can be neither made nor guessed."""
    assert chain_digests(b"another", b"", IDS, 8) != chain_digests(SECRET, b"", IDS, 8)


def test_a_namespace_cannot_be_imitated_by_moving_letters() -> None:
    """Namespaces differ even if tenant and adapter are equal when written together."""
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    assert len({namespace_digest(SECRET, *pair) for pair in pairs}) == len(pairs)


def test_a_namespace_is_no_block() -> None:
    """The start of a chain is made in another domain than the digest of a block."""
    tenant = IDS[:8].tobytes().decode("latin-1")
    assert [namespace_digest(SECRET, tenant, "")] != chain_digests(SECRET, b"", IDS[:8], 8)


def test_joined_digests_come_apart_again() -> None:
    """Digests survive a message; a last one that was cut off is dropped."""
    digests = tuple(chain_digests(SECRET, b"", IDS, 4))
    assert split_digests(join_digests(digests)) == digests
    assert split_digests(join_digests(digests)[:-1]) == digests[:-1]
