"""The code keeps its shape: the rules hold in every module, and every file has its place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ipc.control.registry import COMMANDS
from tests.architecture.repository import (
    PACKAGES,
    ROOT,
    TOP_LEVEL,
    engine_modules,
    files,
    modules,
)
from tests.architecture.rules import RULES, Module, Rule

ENTRY_POINTS = frozenset({"frontends.cli.main"})  # the console script
STRICT_ONLY = frozenset({"imports_at_the_top", "no_code_from_bytes", "no_globals"})
ELSEWHERE = ("/work/" + "shared", "../" + "shared")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_holds_in_every_module(rule: Rule) -> None:
    """Tests and scripts are held to the rules of form, the engine to all of them."""
    everywhere = rule.__name__ not in STRICT_ONLY
    looked_at = modules() if everywhere else engine_modules()
    assert looked_at
    assert [fault for module in looked_at for fault in rule(module)] == []


def test_every_folder_of_modules_is_a_package() -> None:
    """A folder without `__init__.py` would be left out of the wheel."""
    folders = {module.path.parent for module in engine_modules()}
    assert [str(folder) for folder in folders if not (ROOT / folder / "__init__.py").exists()] == []


def test_every_module_is_used() -> None:
    """A module is imported, run by a dotted name that another holds, or found by a registry.

    Those of `core.simulation`, and the loopback ends of the channels, may be used by tests alone,
    which is what they are for.
    """
    used = {name for module in engine_modules() for name in references(module)} | ENTRY_POINTS
    used |= {f"ipc.control.{command.name.replace('-', '_')}" for command in COMMANDS.values()}
    everywhere = (name for module in modules() for name in references(module))
    used |= {name for name in everywhere if name.startswith(("core.simulation.", "ipc.loopback"))}
    assert [str(each.path) for each in engine_modules() if each.dotted not in used] == []


def references(module: Module) -> Iterator[str]:
    """Yield the dotted names that a module imports or spells in its text, and what they imply."""
    if module.path.name in ("__init__.py", "__main__.py"):
        yield module.dotted
    names = [name for _, name in module.imported if not module.dotted.startswith(name)]
    words = module.source.replace('"', " ").replace("`", " ").split()
    names += [word for word in words if word.partition(".")[0] in PACKAGES]
    yield from names


def folders() -> set[str]:
    """Return the top-level folders that have files."""
    return {path.parts[0] for path in files() if len(path.parts) > 1} - {".ci", ".github"}


def test_every_top_level_folder_has_a_readme() -> None:
    """It says what the folder owns, what it never knows and how it works."""
    missing = [each for each in sorted(folders()) if not (ROOT / each / "README.md").is_file()]
    assert missing == []


def test_the_top_level_is_fixed() -> None:
    """A new top-level folder is a decision, not an accident."""
    assert folders() <= set(TOP_LEVEL)


def test_nothing_needs_a_folder_outside_the_repository() -> None:
    """A fresh clone is complete."""
    texts = {path: (ROOT / path).read_bytes() for path in files() if is_text(path)}
    found = [
        str(path) for path, text in texts.items() for word in ELSEWHERE if word.encode() in text
    ]
    assert found == []


def is_text(path: Path) -> bool:
    """Tell by its name whether a file is text."""
    return path.suffix in {".py", ".md", ".toml", ".cpp", ".tcss", ""}
