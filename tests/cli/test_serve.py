"""`headrace serve` up to the point where it becomes the supervisor."""

import argparse
import socket
from pathlib import Path

import pytest

from core.config.file import load_config
from frontends.cli.serve import add_arguments, supervisor_arguments
from tests.support.models.tiny_model import write_tiny_model
from tests.support.processes.cli import assert_one_line, headrace
from tests.support.processes.engine import unique_name


def test_flags_reach_the_supervisor_as_configuration() -> None:
    """A value that cannot be accepted comes back from it in one line, with exit code 2."""
    run = headrace("serve", "--replicas", "99", "--log-level", "LOUD", "--name", "a b")
    assert_one_line(run, 2)
    for text in ("engine.replicas = 99", "supervision.log_level = 'LOUD'", "name = 'a b'"):
        assert text in run.err


def test_an_engine_without_state_is_a_flag() -> None:
    """It stands for a key, and wins over `--set`."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = ["--set", "admin.keep_state=true", "--port", "0", "--no-state"]
    arguments = supervisor_arguments(parser.parse_args(given))
    overrides = [word for word in arguments if word != "--set"]
    assert overrides == ["admin.keep_state=true", "http.port=0", "admin.keep_state=false"]
    assert load_config(None, overrides).admin.keep_state is False


@pytest.mark.slow
@pytest.mark.e2e
def test_an_occupied_port_is_one_line(tmp_path: Path) -> None:
    """It names the port and the key to change, and nothing is left running."""
    model = write_tiny_model(tmp_path / "tiny")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        run = headrace("serve", "--name", unique_name(), "--model", str(model), "--port", port)
    assert_one_line(run, 1)
    assert f"port {port}" in run.err
    assert "http.port" in run.err


@pytest.mark.slow
@pytest.mark.e2e
def test_a_model_that_cannot_be_divided_is_one_line(tmp_path: Path) -> None:
    """It names the key and the heads there are, before any process is started."""
    model = write_tiny_model(tmp_path / "tiny")
    ranks = ("--set", "engine.tensor_parallel=3")
    run = headrace("serve", "--name", unique_name(), "--model", str(model), "--port", "0", *ranks)
    assert_one_line(run, 1)
    assert "2 KV heads" in run.err
    assert "engine.tensor_parallel = 3" in run.err
