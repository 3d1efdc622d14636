"""The C++ kernels for tests, built once a machine into the user's cache as the engine does."""

import ctypes
import functools
import os
from pathlib import Path

from core.kernels.native import build_native, load_library


def kernel_cache() -> Path:
    """Return where the engine keeps built kernels."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "headrace" / "kernels"


@functools.cache
def native_library() -> ctypes.CDLL:
    """Return the loaded kernels; a machine that runs the tests has a compiler."""
    return load_library(build_native(kernel_cache()))
