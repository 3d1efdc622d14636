"""Seeds that once failed, kept for good.

Owns: the file of failing seeds, one `property seed` a line, and how each is run again. Never knows:
what a property is about. `scripts/swarm` adds to it.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
PROPERTIES = "tests.properties"


@dataclass(frozen=True, slots=True)
class Regression:
    """A seed of a property, by the name of its module."""

    name: str
    seed: int

    @property
    def command(self) -> str:
        """What runs this seed alone."""
        return f"scripts/swarm --only {self.name} --from {self.seed} --seeds 1"


class Regressions:
    """The file of failing seeds."""

    def __init__(self, path: Path) -> None:
        """Use `path`, which need not exist."""
        self._path = path

    def all(self) -> list[Regression]:
        """Return what was kept so far."""
        if not self._path.exists():
            return []
        rows = [line.split() for line in self._path.read_text().splitlines() if line.strip()]
        return [Regression(name, int(seed)) for name, seed in rows]

    def add(self, regression: Regression) -> None:
        """Keep one more, once."""
        if regression not in self.all():
            with self._path.open("a") as file:
                file.write(f"{regression.name} {regression.seed}\n")


REGRESSIONS = Regressions(FOLDER / "regressions.txt")


def property_names() -> list[str]:
    """Return the modules of this folder that have a `run_seed`."""
    names = sorted(path.stem for path in FOLDER.glob("test_*.py"))
    return [
        name
        for name in names
        if hasattr(importlib.import_module(f"{PROPERTIES}.{name}"), "run_seed")
    ]
