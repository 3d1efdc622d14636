"""`python -m tests.executor.bare_process MODEL`: kernels and runner without the engine's libraries.

Imports of what a bare checkout does not have fail, whoever asks. Prints the tokens of a tiny model
by plain torch and by Triton's interpreter, a line each.
"""

import importlib
import pkgutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

MISSING = ("zmq", "msgspec", "starlette", "textual", "uvloop", "ipc", "core.config")
ROOMS = ("core.kernels", "core.models")
PROMPT = [5, 60, 7, 201, 9, 33, 12, 8, 90]


class Refuse:
    """Finds nothing, loudly, where something is missing; see `sys.meta_path`."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Refuse a missing package and what is in it."""
        if any(name == missing or name.startswith(f"{missing}.") for missing in MISSING):
            raise ImportError(f"{name} is not here")
        return None


def import_all(room: str) -> list[str]:
    """Import every module of a package; return their names."""
    package = importlib.import_module(room)
    found = [each.name for each in pkgutil.walk_packages(package.__path__, f"{room}.")]
    for name in found:
        importlib.import_module(name)
    return found


def tokens(directory: Path, path: str) -> list[int]:
    """Return what the model says after the prompt, by the kernels `path`."""
    driver_module = importlib.import_module("tests.support.executor.plan_driver")
    executor_module = importlib.import_module("tests.support.executor.runner_executor")
    driver = driver_module.PlanDriver(
        lambda rows, spans, clock: executor_module.RunnerExecutor(
            directory, rows, list(spans), path=path
        ),
        block_size=8,
    )
    sequence = driver.add(PROMPT, 4)
    driver.finish([sequence])
    return list(sequence.outputs)


def main(directory: Path) -> None:
    """Import, then run both."""
    sys.meta_path.insert(0, Refuse)
    importlib.import_module("core.executor.model_runner")
    imported = [name for room in ROOMS for name in import_all(room)]
    sys.stdout.write(f"{len(imported)}\n")
    for path in ("torch", "triton"):
        sys.stdout.write(f"{tokens(directory, path)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
