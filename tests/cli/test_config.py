"""`headrace config`: what would be accepted, before anything is started."""

import json
import tomllib
from pathlib import Path

import msgspec
import pytest

from core.config.docs import key_descriptions
from core.config.file import config_to_json, key_paths, load_config
from core.config.headrace import HeadraceConfig
from frontends.cli.config_flags import SERVE_SHORTCUTS, Shortcut, config_arguments, override
from tests.support.processes.cli import assert_one_line, inside


def test_every_key_has_a_description() -> None:
    """Help, `config keys` and the docs read the same sentence."""
    descriptions = key_descriptions()
    assert set(descriptions) == set(key_paths())
    assert all(text.endswith((".", "…")) and "\n" not in text for text in descriptions.values())


@pytest.mark.parametrize("shortcut", SERVE_SHORTCUTS, ids=lambda shortcut: shortcut.flag)
def test_a_shortcut_stands_for_a_key_that_exists(shortcut: Shortcut) -> None:
    """A renamed key cannot leave a flag behind that does nothing."""
    assert shortcut.key in key_descriptions()


def test_a_shortcut_gives_text_as_text() -> None:
    """A name of digits stays a name, and a port stays a number."""
    overrides = [override("name", "123"), override("http.port", "0")]
    config = load_config(None, overrides)
    assert (config.name, config.http.port) == ("123", 0)


def test_the_choice_of_a_configuration_survives_the_way_to_another_process() -> None:
    """What `serve` passes on is what was given, in order."""
    arguments = config_arguments(Path("a.toml"), ["a=1", "b=2"])
    assert arguments == ["--config", "a.toml", "--set", "a=1", "--set", "b=2"]


def test_check_accepts_the_defaults() -> None:
    """No file is a configuration too."""
    assert inside("config", "check").code == 0
    assert json.loads(inside("config", "check", "--json").out) == {"ok": True}


def test_check_names_the_key_and_the_nearest_one(tmp_path: Path) -> None:
    """A typing error in a file is one line, and exit code 2."""
    path = tmp_path / "x.toml"
    path.write_text("[engine]\nreplcas = 2\n")
    run = inside("config", "check", "--config", str(path))
    assert_one_line(run, 2)
    assert "engine.replcas" in run.err
    assert "engine.replicas" in run.err


def test_check_as_json_has_the_faults_on_stdout() -> None:
    """Programs get the verdict as data, with the same exit code."""
    run = inside("config", "check", "--json", "--set", "engine.replicas=99")
    assert run.code == 2
    assert run.err == ""
    verdict = json.loads(run.out)
    assert verdict["ok"] is False
    assert "engine.replicas = 99" in verdict["error"]


def test_show_writes_what_can_be_read_again() -> None:
    """TOML and JSON say the same, overrides and shortcuts included."""
    arguments = ["config", "show", "--set", "engine.max_num_seqs=7", "--port", "1234"]
    toml = tomllib.loads(inside(*arguments).out)
    shown = json.loads(inside(*arguments, "--json").out)
    config = msgspec.convert(toml, HeadraceConfig)
    assert (config.engine.max_num_seqs, config.http.port) == (7, 1234)
    assert json.loads(config_to_json(config)) == shown


def test_a_missing_file_is_one_line() -> None:
    """With the path in it."""
    run = inside("config", "show", "--config", "/nowhere.toml")
    assert_one_line(run, 2)
    assert "/nowhere.toml" in run.err
