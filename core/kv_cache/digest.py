"""Names of KV blocks by content: a chain of keyed 128-bit digests.

Owns: how a block's name follows from the secret of this boot, the namespace and all tokens up to
its end. Never knows: blocks, caches, requests. The chain starts from a digest of (tenant, adapter),
each with its length in front, so no two namespaces can share a name and no client can choose or
predict one.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 16

_NAMESPACE = b"namespace"
_BLOCK = b"block"


def namespace_digest(secret: bytes, tenant: str, adapter: str) -> bytes:
    """Return the start of the chain of everything `tenant` computes with `adapter`, 16 bytes."""
    hasher = blake2b(key=secret, digest_size=DIGEST_BYTES, person=_NAMESPACE)
    for part in (tenant.encode(), adapter.encode()):
        hasher.update(len(part).to_bytes(4, "little"))
        hasher.update(part)
    return hasher.digest()


def chain_digests(
    secret: bytes, parent: bytes, token_ids: npt.NDArray[np.int32], block_size: int
) -> list[bytes]:
    """Return the names, 16 bytes each, of the full blocks of `token_ids` (int32[n]), the first of
    which is behind `parent`.
    """
    keyed, digests = _block_hasher(secret), list[bytes]()
    ids, num_bytes = token_ids.tobytes(), block_size * token_ids.itemsize
    for start in range(0, len(ids) - num_bytes + 1, num_bytes):
        hasher = keyed.copy()
        hasher.update(parent + ids[start : start + num_bytes])
        parent = hasher.digest()
        digests.append(parent)
    return digests


def join_digests(digests: Sequence[bytes]) -> bytes:
    """Concatenate digests for a message."""
    return b"".join(digests)


def split_digests(joined: bytes) -> tuple[bytes, ...]:
    """Undo `join_digests`; a cut-off last digest is dropped."""
    whole = len(joined) - len(joined) % DIGEST_BYTES
    return tuple(joined[i : i + DIGEST_BYTES] for i in range(0, whole, DIGEST_BYTES))


@lru_cache(maxsize=8)
def _block_hasher(secret: bytes) -> blake2b:
    """Return a hasher that has taken in the key; copies of it are several times as fast."""
    return blake2b(key=secret, digest_size=DIGEST_BYTES, person=_BLOCK)
