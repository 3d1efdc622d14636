"""`headrace models`: data on stdout, nothing downloaded by a test."""

import json
from pathlib import Path

from core.models.registry import ALIASES
from tests.support.models.tiny_model import write_tiny_model
from tests.support.processes.cli import assert_one_line, headrace


def test_list_has_every_known_model_and_where_it_lies(tmp_path: Path) -> None:
    """A model that is not here says so; the cache directory follows XDG_CACHE_HOME."""
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    entries = json.loads(headrace("models", "list", "--json", env=env).out)
    assert [entry["name"] for entry in entries] == list(ALIASES)
    assert not any(entry["is_pulled"] for entry in entries)
    assert entries[0]["path"].startswith(str(tmp_path))
    assert "not pulled" in headrace("models", "list", env=env).out


def test_path_of_a_model_that_is_not_here_says_how_to_get_it(tmp_path: Path) -> None:
    """One line, and nothing on stdout that a script could take for a path."""
    run = headrace("models", "path", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert_one_line(run, 1)
    assert "headrace models pull smollm2-135m" in run.err


def test_an_unknown_model_cannot_be_pulled(tmp_path: Path) -> None:
    """The line names the known ones."""
    run = headrace("models", "pull", "gpt-7", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert_one_line(run, 1)
    assert "smollm2-135m" in run.err


def test_path_of_a_directory_is_that_directory(tmp_path: Path) -> None:
    """A complete Hugging Face directory is a model; a damaged one is not."""
    model = write_tiny_model(tmp_path / "tiny")
    assert headrace("models", "path", str(model)).out == f"{model}\n"
    (model / "config.json").write_text("{")
    assert_one_line(headrace("models", "path", str(model)), 1)
