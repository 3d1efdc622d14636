"""Reading and writing the configuration: TOML, `--set path=value`, JSON.

Owns: the way from text to `HeadraceConfig` and back, and messages that name the key path. Never
knows: what a value means (that is checked beside this file). An unknown key is an error that names
its nearest valid neighbour.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from core.config.headrace import HeadraceConfig
from core.errors import ConfigError
from core.settings.text import describe, nearest, parse_value


def load_config(path: Path | None = None, overrides: Iterable[str] = ()) -> HeadraceConfig:
    """Return the checked configuration of the TOML file `path` (None = all defaults) with
    `overrides` (`path=value`) on top.

    Raises ConfigError if the file cannot be read, or for any key or value that cannot be accepted.
    """
    table = read_toml(path) if path is not None else {}
    for override in overrides:
        apply_override(table, override)
    return config_from_table(table)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table in a TOML file. Raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def apply_override(table: dict[str, Any], override: str) -> None:
    """Set one `path=value` in `table`; the value is TOML, and text that is not TOML stands for
    itself.
    """
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(
            f"--set {override!r} is not of the form path=value, e.g. engine.replicas=2"
        )
    for depth, key in enumerate(keys[:-1]):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override!r}: {'.'.join(keys[: depth + 1])} is not a table")
    table[keys[-1]] = parse_value(text.strip())


def config_from_table(table: Mapping[str, Any]) -> HeadraceConfig:
    """Return the checked configuration of a nested table. Raises ConfigError naming every unknown
    key or bad value.
    """
    unknown = list(unknown_keys(table, HeadraceConfig, ""))
    if unknown:
        raise ConfigError("; ".join(unknown))
    try:
        config = msgspec.convert(table, HeadraceConfig, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(describe(error)) from error
    return config.check()


def config_from_json(data: bytes) -> HeadraceConfig:
    """Return the configuration that `config_to_json` wrote; it has been checked by its writer."""
    return msgspec.json.decode(data, type=HeadraceConfig)


def config_to_json(config: HeadraceConfig) -> bytes:
    """Return all keys as JSON."""
    return msgspec.json.encode(config)


def config_to_toml(config: HeadraceConfig) -> str:
    """Return all keys as TOML, defaults included."""
    tables: dict[str, Any] = msgspec.to_builtins(config)
    lines = [
        f"{key} = {toml_value(value)}" for key, value in tables.items() if not _is_section(value)
    ]
    for name, table in tables.items():
        for header, section in _sections(name, table):
            lines += [
                "",
                header,
                *(f"{key} = {toml_value(value)}" for key, value in section.items()),
            ]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """Return a value as TOML; a JSON string, number or list of them is TOML too."""
    return json.dumps(value, ensure_ascii=False)


def unknown_keys(table: Mapping[str, Any], kind: type, path: str) -> Iterator[str]:
    """Yield one line for each key of `table` that dataclass `kind` has not, with the nearest one it
    has.
    """
    types = get_type_hints(kind)
    for key, value in table.items():
        if key not in types:
            yield f"unknown key {path}{key}: did you mean {nearest_key(path, key, list(types))}?"
            continue
        item = table_type(types[key])
        for inner in value if isinstance(value, list) else [value]:
            if item is not None and isinstance(inner, Mapping):
                yield from unknown_keys(inner, item, f"{path}{key}.")


def nearest_key(path: str, key: str, siblings: list[str]) -> str:
    """Return the valid path that `path` + `key` most likely meant: a key of that name elsewhere, or
    the closest sibling.
    """
    namesakes = [known for known in key_paths() if known.rpartition(".")[2] == key]
    return namesakes[0] if namesakes else f"{path}{nearest(key, siblings)}"


def table_type(hint: object) -> type | None:
    """Return the dataclass that a field of this type holds, directly or in a tuple; None for plain
    values.
    """
    kinds = (kind for kind in (hint, *get_args(hint)) if isinstance(kind, type))
    return next((kind for kind in kinds if is_dataclass(kind)), None)


def key_paths(kind: type = HeadraceConfig, path: str = "") -> Iterator[str]:
    """Yield the path of every key, e.g. `engine.replicas`; a tenant's begin with `tenants.`."""
    types = get_type_hints(kind)
    for entry in fields(kind):
        item = table_type(types[entry.name])
        if item is not None:
            yield from key_paths(item, f"{path}{entry.name}.")
        else:
            yield f"{path}{entry.name}"


def _is_section(value: object) -> bool:
    """True for a table, and for a list of tables."""
    return isinstance(value, dict) or (
        isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value)
    )


def _sections(name: str, value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield header and content of each TOML section that a top-level key makes."""
    if isinstance(value, dict):
        plain = {key: inner for key, inner in value.items() if not isinstance(inner, dict)}
        if plain:
            yield f"[{name}]", plain
        for key, inner in value.items():
            if isinstance(inner, dict):
                yield from _sections(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for item in value:
            if isinstance(item, dict):
                yield f"[[{name}]]", item
