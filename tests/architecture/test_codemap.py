"""ARCHITECTURE.md and the docstrings name what is there: every module, and only what exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, engine_modules, files, modules

ROOMS = ("core", "ipc", "frontends", "dashboard")
DOCUMENT = (ROOT / "ARCHITECTURE.md").read_text()
DOTTED = re.compile(r"`((?:core|ipc|frontends|dashboard)(?:\.\w+)+)`")
CODE = re.compile(r"`([A-Z]\w+|[A-Z]\w+\.\w+|[a-z]\w+_\w+)`")


def section(title: str) -> str:
    """Return the text below a heading of the second level."""
    _, _, rest = DOCUMENT.partition(f"\n## {title}\n")
    assert rest, title
    return rest.partition("\n## ")[0]


def mapped() -> Iterator[str]:
    """Yield every module of the codemap as a path without `.py`."""
    for block in section("Codemap").split("\n### ")[1:]:
        folder = block.split("`")[1]
        for row in block.splitlines():
            if row.startswith("| `"):
                yield from (folder + name for name in re.findall(r"`([^`]+)`", row.split("|")[1]))


def existing() -> Iterator[str]:
    """Yield every module and C++ source of the rooms in the same form."""
    for path in files():
        if path.parts[0] in ROOMS and path.name != "__init__.py":
            if path.suffix == ".py":
                yield str(path.with_suffix(""))
            elif path.suffix in (".cpp", ".h"):
                yield str(path)


def test_the_codemap_has_every_module_once_and_nothing_else() -> None:
    """Whoever adds, moves or removes a module tells the map."""
    lines = sorted(mapped())
    assert lines == sorted(set(lines))
    assert {"missing": set(existing()) - set(lines), "gone": set(lines) - set(existing())} == {
        "missing": set(),
        "gone": set(),
    }


def definitions() -> set[str]:
    """Return the names of all classes, methods, functions, fields and constants."""
    found: set[str] = set()
    for module in engine_modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return found


def test_the_life_of_a_request_names_what_exists() -> None:
    """Every class and function on the way can be searched for."""
    names = {
        part for name in CODE.findall(section("Life of a request")) for part in name.split(".")
    }
    assert len(names) > 40
    assert names - definitions() == set()


def resolves(dotted: str) -> bool:
    """Tell whether a dotted name begins with a module and goes on with at most two names in it."""
    parts = dotted.split(".")
    for length in range(len(parts), max(0, len(parts) - 3), -1):
        path = ROOT.joinpath(*parts[:length])
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
            rest = parts[length:]
            source = path.with_suffix(".py") if path.with_suffix(".py").is_file() else None
            return not rest or (source is not None and rest[0] in source.read_text())
    return False


def texts() -> Iterator[tuple[Path, str]]:
    """Yield every document and module."""
    for module in modules():
        yield module.path, module.source
    for path in files():
        if path.suffix == ".md":
            yield path, (ROOT / path).read_text()


def test_dotted_names_in_prose_lead_somewhere() -> None:
    """A reference in backticks to a module, or a name in it, is not left behind by a move."""
    found = [f"{path}: {name}" for path, text in texts() for name in DOTTED.findall(text)]
    assert len(found) > 50
    assert [each for each in found if not resolves(each.partition(": ")[2])] == []


@pytest.mark.parametrize("title", ["Invariants", "To change X look at Y"])
def test_paths_in_the_tables_exist(title: str) -> None:
    """A reader who follows a path finds a file or folder there."""
    paths = re.findall(r"`((?:core|ipc|frontends|tests|docs|configs)/[\w/.]*)`", section(title))
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
