"""A short directory for sockets: the path of an ipc socket is bounded at 107 bytes."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """Give an empty directory with a short path."""
    with tempfile.TemporaryDirectory(prefix="hr-") as directory:
        yield Path(directory)
