"""Each rule of the code's shape finds the violation planted for it, and only that."""

from pathlib import Path

import pytest

from tests.architecture.rules import (
    MAX_FILE_LINES,
    MAX_FUNCTION_LINES,
    RULES,
    Module,
    Rule,
    anchored_todos,
    documented,
    imports_at_the_top,
    no_code_from_bytes,
    no_globals,
    nothing_swallowed,
    short_files,
    short_functions,
)

TASK = "TO" + "DO"
DOC = '"""A module."""\n'
LONG = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
PLANTED: list[tuple[Rule, str]] = [
    (no_code_from_bytes, "import pickle\n"),
    (no_code_from_bytes, "from multiprocessing import shared_memory\n"),
    (no_code_from_bytes, "import multiprocessing.pool as p\n"),
    (no_code_from_bytes, "eval('1')\n"),
    (no_code_from_bytes, "socket.recv_pyobj()\n"),
    (no_code_from_bytes, "torch.load('x')\n"),
    (short_functions, LONG),
    (short_files, "x = 1\n" * MAX_FILE_LINES),
    (anchored_todos, f"# {TASK}: later\n"),
    (nothing_swallowed, "try:\n    f()\nexcept Exception:\n    pass\n"),
    (nothing_swallowed, "try:\n    f()\nexcept:\n    ...\n"),
    (nothing_swallowed, "try:\n    f()\nexcept (OSError, BaseException):\n    pass\n"),
    (nothing_swallowed, "with contextlib.suppress(Exception):\n    f()\n"),
    (imports_at_the_top, "def f():\n    import json\n"),
    (imports_at_the_top, "if TYPE_CHECKING:\n    import json\n"),
    (no_globals, "def f():\n    global x\n    x = 1\n"),
]
ALLOWED = [
    "import json\nmodel.eval()\n",
    f"# {TASK}(#12): later\n",
    "try:\n    f()\nexcept OSError:\n    pass\n",
    "try:\n    f()\nexcept Exception:\n    log()\n    raise\n",
    "with contextlib.suppress(OSError):\n    f()\n",
]


@pytest.mark.parametrize(("rule", "source"), PLANTED)
def test_a_planted_violation_is_found_by_its_rule_only(rule: Rule, source: str) -> None:
    """The rule names the place, and no other rule objects."""
    module = Module(Path("core/planted.py"), DOC + source)
    found = [each.__name__ for each in RULES if list(each(module))]
    assert found == [rule.__name__]


@pytest.mark.parametrize("source", ALLOWED)
def test_what_is_allowed_is_not_reported(source: str) -> None:
    """Ordinary code near a rule passes."""
    module = Module(Path("core/fine.py"), DOC + source)
    assert [fault for rule in RULES for fault in rule(module)] == []


def test_a_module_without_docstring_is_found() -> None:
    """An empty package file needs none."""
    assert list(documented(Module(Path("core/planted.py"), "x = 1\n")))
    assert not list(documented(Module(Path("core/__init__.py"), "")))


def test_a_kernel_may_be_longer() -> None:
    """The limit on functions does not hold in `core.kernels`."""
    assert not list(short_functions(Module(Path("core/kernels/planted.py"), DOC + LONG)))
