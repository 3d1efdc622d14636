"""The key in an Authorization header."""

import pytest

from frontends.bearer import MAX_KEY_BYTES, bearer_key


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer  abc ", b"abc"),
        (b"Bearer \xff", b"\xff"),
        (b"Basic abc", b""),
        (b"abc", b""),
        (b"", b""),
        (b"Bearer " + b"a" * MAX_KEY_BYTES, b"a" * MAX_KEY_BYTES),
        (b"Bearer " + b"a" * (MAX_KEY_BYTES + 1), b""),
    ],
)
def test_a_key_comes_in_a_bearer_header_only(header: bytes, key: bytes) -> None:
    """Other schemes carry no key, and one that is too long is none."""
    assert bearer_key(header) == key
