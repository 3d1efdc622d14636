"""The prefix cache: one block a digest, one digest a block."""

from core.kv_cache.prefix_cache import PrefixCache

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def test_a_match_is_the_longest_known_prefix() -> None:
    """A match ends at the first digest that is not known, or at the limit."""
    cache = PrefixCache()
    cache.insert([A, B], [1, 2])
    assert cache.match([A, B, C], 3) == [1, 2]
    assert cache.match([A, C, B], 3) == [1]
    assert cache.match([A, B, C], 1) == [1]


def test_the_first_block_with_a_content_stays() -> None:
    """A second block with the same content is not entered."""
    cache = PrefixCache()
    assert cache.insert([A, B, A], [1, 3, 2]) == [1, 3]
    assert cache.insert([A], [2]) == []
    assert cache.find(A) == 1
    assert 2 not in cache


def test_a_forgotten_block_is_not_found() -> None:
    """Forgetting removes both directions; the others stay."""
    cache = PrefixCache()
    cache.insert([A, B, C], [1, 2, 3])
    cache.forget([1, 3])
    assert (cache.match([A], 1), cache.find(B), len(cache)) == ([], 2, 1)
    cache.check_integrity()
