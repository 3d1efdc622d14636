"""Where Headrace keeps what outlives an engine: the XDG base directories, from an environment.

Owns: the two places and their fallbacks. Never knows: what lies there.
"""

from collections.abc import Mapping
from pathlib import Path

NAME = "headrace"


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the place of what can be made again: pulled models, compiled kernels."""
    return _place(environ, "XDG_CACHE_HOME", ".cache")


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return the place of what is worth keeping: audit logs, run-time tenants."""
    return _place(environ, "XDG_STATE_HOME", ".local/state")


def _place(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    home = Path(environ.get("HOME", "/"))
    return Path(environ.get(variable) or home / below_home) / NAME
