"""What is taken out of everything that an operator may hand on: what could help to guess a key.

Owns: which fields these are. Never knows: what the rest means.
"""

from collections.abc import Mapping
from typing import Any

SECRETS = frozenset({"key_sha256", "digest", "key"})


def without_secrets(value: Any) -> Any:
    """Return JSON-like data without what could help to guess a key."""
    if isinstance(value, Mapping):
        return {key: without_secrets(each) for key, each in value.items() if key not in SECRETS}
    if isinstance(value, list | tuple):
        return [without_secrets(each) for each in value]
    return value
