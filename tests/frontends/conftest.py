"""Fixtures of the frontends' tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.http.http_rig import HttpRig, running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., HttpRig]]:
    """Return a function that runs one server with the given `http` settings for this test."""
    with ExitStack() as stack:

        def start_one(**settings: Any) -> HttpRig:
            return stack.enter_context(running(tmp_path / "engine.sock", **settings))

        yield start_one


@pytest.fixture
def rig(start: Callable[..., HttpRig]) -> HttpRig:
    """Return a server with the default settings."""
    return start()
