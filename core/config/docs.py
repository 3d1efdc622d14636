"""What each configuration key means: the docstring under its field, read from the source
of the classes that the configuration is made of.

Owns: the way from a key path to its text. The source is parsed, so the text next
to a field is the only place where a key is described; help, `config show` and the documentation
tests all read it here.
"""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import get_type_hints

from core.config.file import table_type
from core.config.headrace import HeadraceConfig


def key_help(path: str) -> str:
    """Return the one-line description of a key such as `engine.replicas`; raises KeyError if there
    is none."""
    return key_descriptions()[path]


@cache
def key_descriptions() -> Mapping[str, str]:
    """Return the description of every key, by path; keys of a tenant begin with `tenants.`."""
    found: dict[str, str] = {}
    pending: list[tuple[type, str]] = [(HeadraceConfig, "")]
    while pending:
        kind, path = pending.pop()
        types, documented = get_type_hints(kind), _field_docstrings(kind)
        for entry in fields(kind):
            inner = table_type(types[entry.name])
            if inner is not None:
                pending.append((inner, f"{path}{entry.name}."))
            else:
                found[f"{path}{entry.name}"] = documented[entry.name]
    return found


def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the string that follows each annotated field of a class."""
    [node] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(node, ast.ClassDef), kind
    found: dict[str, str] = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(docstring))),
            ):
                found[name] = docstring
    return found
