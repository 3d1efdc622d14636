"""`headrace serve` up to the point where it becomes the supervisor."""

import socket
from pathlib import Path

import pytest

from tests.support.cli import assert_one_line, headrace
from tests.support.tiny_model import write_tiny_model


def test_flags_reach_the_supervisor_as_configuration() -> None:
    """A value that cannot be accepted comes back from it in one line, with exit code 2."""
    run = headrace("serve", "--replicas", "99", "--log-level", "LOUD", "--name", "a b")
    assert_one_line(run, 2)
    for text in ("engine.replicas = 99", "supervision.log_level = 'LOUD'", "name = 'a b'"):
        assert text in run.err


@pytest.mark.slow
@pytest.mark.e2e
def test_an_occupied_port_is_one_line(tmp_path: Path) -> None:
    """It names the port and the key to change, and nothing is left running."""
    model = write_tiny_model(tmp_path / "tiny")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        run = headrace("serve", "--name", "test-serve", "--model", str(model), "--port", port)
    assert_one_line(run, 1)
    assert f"port {port}" in run.err
    assert "http.port" in run.err
