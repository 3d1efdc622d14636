"""Typed values out of one JSON object of a model directory, each checked where it is read.

Owns: the wording of what is wrong with a value. Never knows: what the keys mean. A key that is
missing and one that is null are the same, except where a default of the family says otherwise.
"""

import math
from collections.abc import Mapping

from core.errors import ModelError


class ConfigReader:
    """Reads values of one JSON object; `where` names it in errors."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self._where = where

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def with_defaults(self, defaults: Mapping[str, object]) -> "ConfigReader":
        """Return a reader in which keys that are missing (not: null) have these values."""
        return ConfigReader({**defaults, **self._values}, self._where)

    def inside(self, key: str, values: Mapping[str, object]) -> "ConfigReader":
        """Return a reader of `values`, which errors place under `key`."""
        return ConfigReader(values, f"{self._where}: {key}")

    def fault(self, message: str) -> ModelError:
        """Return the error to raise about this object."""
        return ModelError(f"{self._where}: {message}")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer from `low` to `high`."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.fault(f"{key} = {value!r} is not an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.fault(f"{key} = {value!r} is not a positive number")
        if not math.isfinite(value):
            raise self.fault(f"{key} is not finite")
        return float(value)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Return a list of exactly `count` positive numbers."""
        value = self._values.get(key)
        if not isinstance(value, list) or len(value) != count:
            raise self.fault(f"{key} is not a list of {count} numbers")
        return tuple(self.inside(key, {"item": item}).number("item") for item in value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(f"{key} = {value!r} is not true or false")
        return value

    def choice(self, key: str, known: tuple[str, ...], default: str) -> str:
        """Return one of the `known` words."""
        value = self._values.get(key)
        if value is None:
            return default
        if value not in known:
            raise self.fault(f"{key} = {value!r} is not supported (only {', '.join(known)})")
        return value

    def words(self, key: str, known: tuple[str, ...], count: int) -> tuple[str, ...]:
        """Return a list of exactly `count` of the `known` words."""
        value = self._values.get(key)
        if not isinstance(value, list) or len(value) != count:
            raise self.fault(f"{key} is not a list of {count} words")
        return tuple(
            self.inside(key, {"item": item}).choice("item", known, known[0]) for item in value
        )

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """Return ids inside the vocabulary, given as one or as a list."""
        value = self._values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token_id in ids:
            if not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
                raise self.fault(f"{key} = {value!r} is not inside the vocabulary of {vocab_size}")
        return tuple(ids)

    def forbid(self, key: str) -> None:
        """Raise ModelError unless the key is missing, null or false."""
        value = self._values.get(key)
        if value:
            raise self.fault(f"{key} = {value!r} is not supported")

    def mapping(self, key: str) -> Mapping[str, object]:
        """Return a JSON object, empty if missing."""
        value = self._values.get(key) or {}
        if not isinstance(value, dict):
            raise self.fault(f"{key} = {value!r} is not an object")
        return value
