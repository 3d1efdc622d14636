"""What holds for every test of a process.

Random examples are judged by what they show, never by how fast they are: a busy machine makes any
of them slow. Where the environment says CI, Hypothesis draws the same ones at each run, so that a
change never fails for what it did not touch; elsewhere it draws others, and `scripts/swarm` looks
much further.
"""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def thaw() -> Iterator[None]:
    """Let the process free all at its end: loops under test have frozen what there was when they
    began, and Triton's bindings complain of what is not freed.
    """
    yield
    gc.unfreeze()
