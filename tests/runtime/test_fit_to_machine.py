"""What a configuration leaves open is settled by the machine and the model, once."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from core.config.headrace import HeadraceConfig
from core.models.registry import ModelFacts
from core.runtime import serve
from core.runtime.serve import fit_to_machine

FACTS = ModelFacts("m", Path("m"), 2048, 300, (1,), 1000)


def config(**engine: object) -> HeadraceConfig:
    """The default configuration with some keys of `engine` changed."""
    plain = HeadraceConfig()
    return replace(plain, engine=replace(plain.engine, **engine))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine, or a cgroup's quota, of two cores."""
    monkeypatch.setattr(serve, "available_cores", lambda: 2)


@pytest.mark.parametrize(
    ("threads", "replicas", "is_crowded"),
    [(2, 1, False), (1, 2, False), (3, 1, True), (2, 2, True)],
)
def test_more_threads_than_cores_are_told_of(
    threads: int, replicas: int, is_crowded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Threads that were asked for are started, and a warning says what too many of them cost."""
    with caplog.at_level(logging.WARNING):
        fitted = fit_to_machine(config(threads=threads, replicas=replicas), FACTS)
    assert fitted.engine.threads == threads
    assert ("share 2 cores" in caplog.text) == is_crowded


def test_a_simulated_executor_needs_no_cores(caplog: pytest.LogCaptureFixture) -> None:
    """What computes nothing crowds nobody."""
    with caplog.at_level(logging.WARNING):
        fit_to_machine(config(executor="simulated", threads=9), FACTS)
    assert caplog.text == ""


def test_the_context_is_the_lesser_of_setting_and_model() -> None:
    """A model bounds the context, unless nothing is computed."""
    assert fit_to_machine(config(max_model_len=8192), FACTS).engine.max_model_len == 2048
    assert fit_to_machine(config(max_model_len=512), FACTS).engine.max_model_len == 512
    simulated = config(max_model_len=8192, executor="simulated")
    assert fit_to_machine(simulated, FACTS).engine.max_model_len == 8192
