"""Flags that every verb with a configuration has: `--config`, `--set`, and shortcuts for the most
used keys.

Owns: which keys have a shortcut. Names, types and help come from the dataclass fields of
`core.config`, so a key is described in one place.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from core.config.docs import key_help
from core.config.headrace import HeadraceConfig


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A flag that stands for one key."""

    flag: str
    key: str

    @property
    def attribute(self) -> str:
        """Name of its value in the parsed arguments."""
        return f"set_{self.key.replace('.', '_')}"


SERVE_SHORTCUTS = (
    Shortcut("--name", "name"),
    Shortcut("--host", "http.host"),
    Shortcut("--port", "http.port"),
    Shortcut("--model", "engine.model"),
    Shortcut("--replicas", "engine.replicas"),
    Shortcut("--dtype", "engine.dtype"),
    Shortcut("--quantization", "engine.quantization"),
    Shortcut("--log-level", "supervision.log_level"),
)
ENGINE_SHORTCUTS = tuple(s for s in SERVE_SHORTCUTS if s.key.startswith("engine."))


def add_config_flags(parser: argparse.ArgumentParser, shortcuts: Iterable[Shortcut]) -> None:
    """Declare `--config`, `--set` and the shortcuts."""
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="TOML file; keys not in it have their default"
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="set one key, e.g. engine.max_num_seqs=32; may be repeated, wins over the file",
    )
    for shortcut in shortcuts:
        parser.add_argument(
            shortcut.flag,
            metavar=shortcut.flag.strip("-").upper(),
            dest=shortcut.attribute,
            help=key_help(shortcut.key),
        )


def overrides_of(args: argparse.Namespace, shortcuts: Iterable[Shortcut]) -> list[str]:
    """Return all `key=value` overrides that were given, shortcuts last."""
    given = ((s.key, getattr(args, s.attribute)) for s in shortcuts)
    return [*args.overrides, *(override(key, text) for key, text in given if text is not None)]


def override(key: str, text: str) -> str:
    """Return `key=value` with `text` quoted if the key holds text, so that a name may be `123`."""
    holds_text = isinstance(attrgetter(key)(HeadraceConfig()), str)
    return f"{key}={json.dumps(text) if holds_text else text}"


def config_arguments(path: Path | None, overrides: Iterable[str]) -> list[str]:
    """Return the same choice of configuration as arguments for another process."""
    arguments = ["--config", str(path)] if path is not None else []
    for override in overrides:
        arguments += ["--set", override]
    return arguments
