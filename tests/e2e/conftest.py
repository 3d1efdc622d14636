"""Models and engines for the tests with real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.models.tiny_model import write_tiny_model
from tests.support.processes.engine import Engine, running_engine

SIMULATED = ("engine.executor=simulated", "engine.simulated_step_us=2000")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a tiny random model."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def simulated_engine(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> Iterator[Engine]:
    """Return a running engine whose executor is simulated, for a whole module."""
    with running_engine(tmp_path_factory.mktemp("home"), tiny_model, SIMULATED) as engine:
        yield engine
