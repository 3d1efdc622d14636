"""From text to a value, and to a message that names the key path, for settings of every kind.

Owns: these small readings. Never knows: which settings there are (`core.config`, `core.tenancy`).
"""

import difflib
import tomllib
from collections.abc import Sequence

import msgspec


def parse_value(text: str) -> object:
    """Return the TOML value in `text`, or `text` itself if it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def nearest(key: str, known: Sequence[str]) -> str:
    """Return the one of `known` that `key` most likely meant."""
    return difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]


def describe(error: msgspec.ValidationError) -> str:
    """Return msgspec's message with the key path in front: `engine.replicas: Expected int, got
    str`.
    """
    message, _, place = str(error).partition(" - at `")
    path = place.rstrip("`").removeprefix("$.")
    return f"{path}: {message}" if path else message
