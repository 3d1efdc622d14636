"""The key in an Authorization header, for both HTTP ports.

Owns: the form `Bearer KEY`. Never knows: which keys are good.
"""

MAX_KEY_BYTES = 1024


def bearer_key(authorization: bytes) -> bytes:
    """Return the key of a header, b"" if it has none of this form or one that is too long."""
    scheme, _, key = authorization.partition(b" ")
    key = key.strip()
    return key if scheme.lower() == b"bearer" and len(key) <= MAX_KEY_BYTES else b""
