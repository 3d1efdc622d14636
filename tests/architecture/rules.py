"""The shape of the code as rules over syntax trees: each takes a module and yields what is wrong.

Pure functions, so that `test_rules` can plant a violation for each, and `test_shape` can apply all
of them to every module of the repository.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 70
BANNED_MODULES = frozenset(
    {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "multiprocessing"}
)
BANNED_CALLS = frozenset({"eval", "exec", "__import__"})
BANNED_METHODS = frozenset({"recv_pyobj", "send_pyobj"})
UNSAFE_LOADERS = frozenset({("torch", "load"), ("yaml", "load"), ("joblib", "load")})
ANCHORLESS = re.compile(r"\b(T[O]DO|F[I]XME|H[A]CK)\b(?!\(#\d+\))")
BROAD = frozenset({"Exception", "BaseException"})


@dataclass(frozen=True)
class Module:
    """One source file: its place in the repository and its text."""

    path: Path  # relative to the repository
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.source, str(self.path))

    @property
    def dotted(self) -> str:
        """The import path, which is the file path."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def imported(self) -> list[tuple[int, str]]:
        """Line and dotted name of everything imported, members of modules included."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found += [(node.lineno, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                found.append((node.lineno, base))
                found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
        return found


Rule = Callable[[Module], Iterator[str]]


def no_code_from_bytes(module: Module) -> Iterator[str]:
    """Nothing that runs code out of data: deserializers, eval, and processes that pickle."""
    for line, name in module.imported:
        if name.partition(".")[0] in BANNED_MODULES:
            yield f"{module.path}:{line} imports {name}"
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in BANNED_CALLS:
            yield f"{module.path}:{node.lineno} calls {function.id}"
        if isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            if function.attr in BANNED_METHODS or (owner, function.attr) in UNSAFE_LOADERS:
                yield f"{module.path}:{node.lineno} calls {owner}.{function.attr}"


def short_functions(module: Module) -> Iterator[str]:
    """A function fits a screen; kernels are honestly longer."""
    if module.dotted.startswith("core.kernels."):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{module.path}:{node.lineno} {node.name} has {length} lines"


def short_files(module: Module) -> Iterator[str]:
    """A file is about one thing."""
    length = module.source.count("\n")
    if length > MAX_FILE_LINES:
        yield f"{module.path} has {length} lines"


def documented(module: Module) -> Iterator[str]:
    """A module says what it owns; an empty `__init__` has nothing to say."""
    if module.source.strip() and not ast.get_docstring(module.tree):
        yield f"{module.path} has no docstring"


def anchored_todos(module: Module) -> Iterator[str]:
    """What is left to do names the issue where it is kept."""
    for number, line in enumerate(module.source.splitlines(), 1):
        if found := ANCHORLESS.search(line):
            yield f"{module.path}:{number} {found[0]} without (#issue)"


def nothing_swallowed(module: Module) -> Iterator[str]:
    """No handler catches everything and does nothing."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and _is_idle(node.body):
            yield f"{module.path}:{node.lineno} swallows every exception"
        if isinstance(node, ast.Call) and _suppresses_all(node):
            yield f"{module.path}:{node.lineno} suppresses every exception"


def _suppresses_all(call: ast.Call) -> bool:
    return _name(call.func) == "suppress" and any(_is_broad(each) for each in call.args)


def _is_broad(kind: ast.expr | None) -> bool:
    if isinstance(kind, ast.Tuple):
        return any(_is_broad(each) for each in kind.elts)
    return kind is None or _name(kind) in BROAD


def _is_idle(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(each, ast.Pass | ast.Continue)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in body
    )


def _name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def imports_at_the_top(module: Module) -> Iterator[str]:
    """The head of a file shows all that it needs: no import in a function, none for types only."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Import | ast.ImportFrom):
                    yield f"{module.path}:{inner.lineno} import inside {node.name}"
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            yield f"{module.path}:{node.lineno} imports for type checking only"


def no_globals(module: Module) -> Iterator[str]:
    """State has an owner, and that is no module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Global):
            yield f"{module.path}:{node.lineno} global {', '.join(node.names)}"


RULES: tuple[Rule, ...] = (
    no_code_from_bytes,
    short_functions,
    short_files,
    documented,
    anchored_todos,
    nothing_swallowed,
    imports_at_the_top,
    no_globals,
)
