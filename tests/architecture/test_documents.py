"""The documents keep up with the code: keys, commands and verbs are looked for by name."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import get_args

import msgspec
import pytest

from core.config.headrace import HeadraceConfig
from core.policy.base import Blocked
from core.scheduler.decisions import DecisionKind
from frontends.cli.verbs import VERBS
from frontends.http.application.openapi import BODIES, SUMMARIES
from frontends.openai.schema import UNSUPPORTED
from tests.architecture.repository import ROOT, files

DEFAULT_TOML = ROOT / "configs" / "default.toml"


def keys(kind: type, prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every key below a dataclass; of a list, the path of its items."""
    for each in fields(kind):
        inner = next((t for t in (each.type, *get_args(each.type)) if is_dataclass(t)), None)
        if isinstance(inner, type):
            yield from keys(inner, f"{prefix}{each.name}.")
        else:
            yield f"{prefix}{each.name}"


def toml_keys(text: str) -> set[str]:
    """Return the keys of a TOML file, those in comments too."""
    found, table = set(), ""
    for line in text.splitlines():
        if header := re.fullmatch(r"#?\s*\[+([\w.]+)\]+", line.strip()):
            table = f"{header[1]}."
        elif key := re.match(r"#?\s*(\w+)\s*=", line.strip()):
            found.add(f"{table}{key[1]}")
    return found


def test_every_key_is_in_the_default_configuration() -> None:
    """`configs/default.toml` shows every key there is, and none that is not."""
    assert toml_keys(DEFAULT_TOML.read_text()) == set(keys(HeadraceConfig))


def test_every_configuration_is_in_the_readme_of_its_folder() -> None:
    """Each file says there what it is for."""
    readme = (ROOT / "configs" / "README.md").read_text()
    names = [path.name for path in files() if path.match("configs/*.toml")]
    assert [name for name in names if f"`{name}`" not in readme] == []


def scripts(folder: str) -> list[str]:
    """Return the commands of a scripts folder."""
    found = [path for path in files() if str(path.parent) == folder and not path.suffix]
    return [path.name for path in found if not path.name.startswith("_")]


@pytest.mark.parametrize("folder", ["scripts", "scripts/bench"])
def test_every_command_is_in_the_readme_of_its_folder(folder: str) -> None:
    """And each is executable and has a first line that says how to run it."""
    readme = (ROOT / folder / "README.md").read_text()
    names = scripts(folder)
    assert names
    for name in names:
        path = ROOT / folder / name
        assert f"`{name}" in readme or f"`{folder}/{name}" in readme, name
        assert path.stat().st_mode & 0o111, name
        assert path.read_text().startswith("#!"), name


def test_every_verb_is_in_the_readme() -> None:
    """Whoever reads the first page knows every verb of the command line."""
    readme = (ROOT / "README.md").read_text()
    assert [verb.name for verb in VERBS if f"headrace {verb.name}" not in readme] == []


@pytest.mark.parametrize("body", BODIES.values())
def test_every_field_of_a_request_is_in_the_page_on_http(body: type[msgspec.Struct]) -> None:
    """Whoever looks for a field finds what it does here, or that it is refused."""
    page = (ROOT / "docs" / "http.md").read_text()
    refused = page[page.index("Refused with") : page.index("## Streams")]
    served = page.replace(refused, "")
    names = body.__struct_fields__
    assert [n for n in names if n in UNSUPPORTED and f"`{n}`" not in refused] == []
    assert [n for n in names if n not in UNSUPPORTED and f"`{n}`" not in served] == []


def test_every_path_is_in_the_page_on_http() -> None:
    """Each call is listed with its path, `{id}` for a model's name."""
    page = (ROOT / "docs" / "http.md").read_text()
    paths = [path.replace("{model_id}", "{id}").removeprefix("/v1/models") for path in SUMMARIES]
    assert [path for path in paths if path not in ("", "/") and path not in page] == []


def test_every_reason_and_decision_is_explained() -> None:
    """Whoever reads a word of `ctl show` or `ctl events` finds what it means."""
    page = (ROOT / "docs" / "waits.md").read_text()
    words = [each.name.lower() for each in Blocked if each is not Blocked.NOTHING]
    words += [each.label for each in DecisionKind]
    assert [word for word in words if f"`{word}`" not in page] == []


def test_the_changelog_has_the_current_version() -> None:
    """A version in pyproject.toml has its section."""
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert f"## [{version[1]}]" in (ROOT / "CHANGELOG.md").read_text()
