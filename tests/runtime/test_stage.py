"""What must exist before the first child: all of it, or one clear line and nothing left."""

import hashlib
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.config.file import load_config
from core.config.headrace import HeadraceConfig
from core.errors import StartError
from core.runtime.supervisor.stage import Stage, set_up
from core.supervision.spec import child_specs
from ipc.base_directory import default_base
from ipc.directory import DirectoryReader
from ipc.errors import SegmentSpaceError
from ipc.run_directory import RunDirectory
from ipc.segment import Segment


@pytest.fixture
def config() -> HeadraceConfig:
    """Return a small configuration with a name of its own and any free ports."""
    return load_config(
        None, [f"name=t-{uuid.uuid4().hex[:12]}", "http.port=0", "tokenizer.arena_tokens=8192"]
    )


@pytest.fixture
def stage(config: HeadraceConfig) -> Iterator[Stage]:
    """Return a stage that is closed afterwards."""
    stage = set_up(config, child_specs(config))
    yield stage
    stage.close()


def run_path(config: HeadraceConfig) -> Path:
    """Return where the engine's run directory lies."""
    return default_base() / config.name


def test_the_run_directory_is_private(stage: Stage) -> None:
    """Directory 0700, every file 0600."""
    assert stage.directory.path.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in stage.directory.path.iterdir()} == {0o600}


def test_the_ports_are_bound_and_written_down(stage: Stage) -> None:
    """Both listeners take connections at once, at the ports in `ports.json`."""
    ports = stage.directory.read_ports()
    for port in (ports.http_port, ports.admin_port):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_the_first_tenant_directory_has_the_default_tenant(stage: Stage) -> None:
    """Without tenants in the configuration there is one, without keys; the admin key is random."""
    snapshot = DirectoryReader(stage.segments[stage.directory.directory]).read()
    assert [(t.name, t.key_sha256) for t in snapshot.tenants] == [("default", ())]
    key = stage.directory.read_admin_key()
    assert snapshot.admin_key_sha256 == hashlib.sha256(key.encode()).hexdigest()


def test_closing_leaves_nothing(config: HeadraceConfig) -> None:
    """No file and no listener is left."""
    stage = set_up(config, child_specs(config))
    port = stage.ports.http_port
    stage.close()
    assert not run_path(config).exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.parametrize("section", ["http", "admin"])
def test_an_occupied_port_is_one_line_that_names_the_key(
    config: HeadraceConfig, section: str
) -> None:
    """The message says what to change, and the run directory is given back."""
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        port = occupant.getsockname()[1]
        taken = load_config(None, [f"name={config.name}", "http.port=0", f"{section}.port={port}"])
        with pytest.raises(StartError, match=f"port {port} .* in use.*{section}.port"):
            set_up(taken, child_specs(taken))
    assert not run_path(config).exists()


def test_a_second_engine_of_the_same_name_is_refused(stage: Stage, config: HeadraceConfig) -> None:
    """The first one keeps its directory."""
    with pytest.raises(StartError, match="already running"):
        set_up(config, child_specs(config))
    assert RunDirectory.find(config.name).path == stage.directory.path


def test_too_little_shared_memory_says_how_much_is_needed(
    config: HeadraceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes are in the message, and what was made before is given back."""

    def no_room(path: Path, size_bytes: int, head: bytes) -> Segment:
        raise SegmentSpaceError(str(path), size_bytes, 4096)

    monkeypatch.setattr(Segment, "create", no_room)
    with pytest.raises(StartError, match=r"needs \d+ bytes but only 4096"):
        set_up(config, child_specs(config))
    assert not run_path(config).exists()


def test_an_arena_beyond_the_file_system_is_refused(config: HeadraceConfig) -> None:
    """The sum of all segments is compared with the free room before anything is taken."""
    greedy = load_config(
        None,
        [
            f"name={config.name}",
            "http.port=0",
            f"tokenizer.arena_tokens={2**31}",
            "tokenizer.processes=8",
        ],
    )
    with pytest.raises(StartError, match=r"needs \d+ bytes but only"):
        set_up(greedy, child_specs(greedy))
    assert not run_path(config).exists()


def test_memory_is_taken_when_it_is_made(stage: Stage) -> None:
    """Every segment has its whole size from the start."""
    for path, segment in stage.segments.items():
        assert path.stat().st_size == segment.size_bytes
        assert path.stat().st_blocks * 512 >= segment.size_bytes
