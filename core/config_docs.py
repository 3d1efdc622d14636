"""What each configuration key means: the docstring under its field, read from the source of
the modules that the configuration is made of.

Owns: the way from a key path to its text. The file is parsed, not imported again, so the text next
to a field is the only place where a key is described; help, `config show` and the documentation
tests all read it here.
"""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import get_type_hints

import core.config
import core.tenancy
import core.tracing_config
from core.config import HeadraceConfig
from core.config_file import table_type


def key_help(path: str) -> str:
    """Return the one-line description of a key such as `engine.replicas`; raises KeyError if there
    is none."""
    return key_descriptions()[path]


@cache
def key_descriptions() -> Mapping[str, str]:
    """Return the description of every key, by path; keys of a tenant begin with `tenants.`."""
    documented = _field_docstrings()
    found: dict[str, str] = {}
    pending: list[tuple[type, str]] = [(HeadraceConfig, "")]
    while pending:
        kind, path = pending.pop()
        types = get_type_hints(kind)
        for entry in fields(kind):
            inner = table_type(types[entry.name])
            if inner is not None:
                pending.append((inner, f"{path}{entry.name}."))
            else:
                found[f"{path}{entry.name}"] = documented[kind.__name__][entry.name]
    return found


def _field_docstrings() -> dict[str, dict[str, str]]:
    """Return, per class of these modules, the string that follows each annotated field."""
    sources = map(inspect.getsource, (core.config, core.tenancy, core.tracing_config))
    nodes = [node for source in sources for node in ast.parse(source).body]
    return {node.name: _class_docstrings(node) for node in nodes if isinstance(node, ast.ClassDef)}


def _class_docstrings(node: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(docstring))),
            ):
                found[name] = docstring
    return found
