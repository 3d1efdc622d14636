"""Every seed that has ever failed passes now, and stays in the suite."""

import importlib
from pathlib import Path

from tests.properties.regressions import PROPERTIES, REGRESSIONS, Regression, Regressions


def test_every_seed_that_once_failed_passes() -> None:
    """What a swarm has found stays fixed."""
    for regression in REGRESSIONS.all():
        run_seed = importlib.import_module(f"{PROPERTIES}.{regression.name}").run_seed
        try:
            run_seed(regression.seed)
        except Exception as error:
            error.add_note(f"replay: {regression.command}")
            raise


def test_a_failing_seed_is_kept_once(tmp_path: Path) -> None:
    """The file has a line for each seed that failed, however often, and its replay command."""
    regressions = Regressions(tmp_path / "seeds.txt")
    assert regressions.all() == []
    for seed in (3, 4, 3):
        regressions.add(Regression("test_x", seed))
    assert regressions.all() == [Regression("test_x", 3), Regression("test_x", 4)]
    assert regressions.all()[0].command == "scripts/swarm --only test_x --from 3 --seeds 1"
