"""The wheel has all that the engine needs and starts without the repository."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.architecture.repository import PACKAGES, ROOT, files

INSTALLED = {".py", ".cpp", ".h", ".tcss", ".toml"}
pytestmark = pytest.mark.slow


def run(*command: str, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed; return what it printed."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel that was built from a copy of the repository's files."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for path in files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", str(folder), str(source), cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    """Every module, kernel source, style sheet and configuration, but no test or script."""
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {str(path) for path in files() if path.parts[0] in PACKAGES and path.suffix in INSTALLED}
    assert {name for name in names if ".dist-info/" not in name} == ours


def test_the_wheel_declares_the_command_and_that_it_stays_private(wheel: Path) -> None:
    """`headrace` is the one console script; the licence is inside; no index would take it."""
    archive = zipfile.ZipFile(wheel)
    by_end = {name.partition(".dist-info/")[2]: name for name in archive.namelist()}
    scripts = archive.read(by_end["entry_points.txt"]).decode()
    metadata = archive.read(by_end["METADATA"]).decode()
    assert "headrace = frontends.cli.main:main" in scripts
    assert "Classifier: Private :: Do Not Upload" in metadata
    assert "licenses/LICENSE" in by_end


def test_the_installed_wheel_starts_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    """The command runs from the installed files, whatever the current directory holds."""
    (tmp_path / "core").mkdir()
    target = tmp_path / "installed"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--target", str(target), str(wheel), cwd=tmp_path)
    python = (sys.executable, "-P")
    place = run(
        *python, "-c", "import core; print(core.__file__)", cwd=tmp_path, PYTHONPATH=str(target)
    )
    assert Path(place.strip()).is_relative_to(target)
    version = run(
        *python, "-m", "frontends.cli.main", "version", cwd=tmp_path, PYTHONPATH=str(target)
    )
    assert "0." in version
