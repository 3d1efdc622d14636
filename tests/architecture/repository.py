"""What the architecture tests look at: the files of this repository, read once."""

import subprocess
from functools import cache
from pathlib import Path

from tests.architecture.rules import Module

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("core", "ipc", "frontends", "dashboard", "configs")
TOP_LEVEL = (*PACKAGES, "scripts", "tests", "docs")


@cache
def files() -> tuple[Path, ...]:
    """Return the files that git knows or would add, relative to the repository."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = (Path(name) for name in listing.stdout.split("\0") if name)
    return tuple(sorted(path for path in paths if (ROOT / path).is_file()))


@cache
def modules() -> tuple[Module, ...]:
    """Return every Python module of the packages, the scripts and the tests."""
    return tuple(
        Module(path, (ROOT / path).read_text()) for path in files() if path.suffix == ".py"
    )


def engine_modules() -> list[Module]:
    """Return the modules that are installed."""
    return [module for module in modules() if module.path.parts[0] in PACKAGES]
