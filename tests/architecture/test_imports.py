"""The arrows between the rooms: the contracts hold, can break, and hold at run time too."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core.supervision.spec import MODULES, ChildKind
from tests.architecture.repository import PACKAGES, ROOT

TENSORS = frozenset({"torch", "triton", "numba"})
TERMINAL = frozenset({"textual", "dashboard"})
WEB = frozenset({"starlette", "uvicorn"})
ENGINE_ROOMS = frozenset(
    f"core.{room}" for room in ("scheduler", "policy", "executor", "kernels", "models", "runtime")
)
FORBIDDEN: dict[str, frozenset[str]] = {
    MODULES[ChildKind.JANITOR]: TENSORS | TERMINAL | WEB | {"frontends"},
    MODULES[ChildKind.ADMIN]: TENSORS | TERMINAL | ENGINE_ROOMS,
    MODULES[ChildKind.EXECUTOR]: TERMINAL | WEB | {"frontends"},
    MODULES[ChildKind.SCHEDULER]: TENSORS | TERMINAL | WEB | {"frontends"},
    MODULES[ChildKind.TOKENIZER]: TENSORS | TERMINAL | WEB | {"frontends"},
    MODULES[ChildKind.HTTP]: TENSORS | TERMINAL | ENGINE_ROOMS,
    "frontends.cli.main": TENSORS | TERMINAL | WEB | ENGINE_ROOMS,
    "core.engine_core": TENSORS | TERMINAL | WEB | {"ipc", "zmq", "asyncio", "frontends"},
    "core.supervision.tree": TENSORS | TERMINAL | WEB | {"ipc", "zmq", "asyncio", "frontends"},
}
PLANTS = {
    "core/scheduler/plan.py": "import time",
    "ipc/board.py": "import core.config",
    "dashboard/planted.py": "import core.config",
    "frontends/health.py": "import core.scheduler.plan",
    "frontends/http/application/sse.py": "import frontends.admin.access",
    "core/models/decoder.py": "import core.config",
    "core/tenancy/classes.py": "import core.config",
}
CONTRACTS = (
    "Arrows point one way",
    "Decisions are pure: no I/O, no clock, no tensor",
    "The dashboard knows the engine only through ipc",
    "Frontends know the engine's vocabulary, not its parts",
    "The OpenAI port knows nothing of the admin pool",
    "Models run without configuration or processes",
    "The configuration knows tenants, not the other way round",
)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the repository in `folder`."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_declared_contracts_hold() -> None:
    """Import-linter finds every contract and none broken."""
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout
    assert all(f"{contract} KEPT" in done.stdout for contract in CONTRACTS), done.stdout


@pytest.mark.slow
def test_each_contract_breaks_when_its_arrow_is_turned(tmp_path: Path) -> None:
    """One planted import for each contract, in a copy, breaks all of them."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, line in PLANTS.items():
        with (tmp_path / path).open("a") as file:
            file.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode != 0
    assert all(f"{contract} BROKEN" in done.stdout for contract in CONTRACTS), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_process_loads_nothing_it_must_not_know(name: str) -> None:
    """Imports hidden in functions or behind names are found in `sys.modules` of a fresh process."""
    entry = f"{name}.__main__" if (ROOT / name.replace(".", "/") / "__main__.py").exists() else name
    code = f"import json, sys, {entry}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert entry in loaded
    assert sorted(loaded & FORBIDDEN[name]) == []
