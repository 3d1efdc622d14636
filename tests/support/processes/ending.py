"""A child process of a test: gone when its block ends, so that a test that fails leaves nothing to
the next one.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import AnyStr


@contextmanager
def ending(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Kill the process with the block if it has not ended by then, and close its pipes."""
    with process:
        try:
            yield process
        finally:
            process.kill()
