"""Reading the configuration: files, overrides, and messages that name the key."""

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.config.docs import key_help
from core.config.file import (
    config_from_json,
    config_from_table,
    config_to_json,
    config_to_toml,
    key_paths,
    load_config,
)
from core.config.headrace import HeadraceConfig
from core.errors import ConfigError
from core.tenancy.classes import CLASS_NAMES

CONFIGS = Path(__file__).parents[2] / "configs"


def written_comments(text: str) -> dict[str, tuple[str, str]]:
    """Return {key path: (comment above it, value as text)} of a TOML file; commented-out keys of
    `[[tenants]]` included.
    """
    found: dict[str, tuple[str, str]] = {}
    section, comment = "", ""
    for line in text.splitlines():
        content = (
            line.removeprefix("# ") if "tenants" in (section, line[3:-1].strip("[]")) else line
        )
        if content.startswith("["):
            section = content.strip("[]")
        elif (
            " = " in content
            and not content.startswith("#")
            and content.split(" = ")[0].isidentifier()
        ):
            key, _, value = content.partition(" = ")
            found[f"{section}.{key}" if section else key] = (comment.strip(), value)
            comment = ""
            continue
        elif content.startswith("# ") or (section == "tenants" and line.startswith("# ")):
            comment += " " + line.removeprefix("# ")
            continue
        comment = ""
    return found


def flattened(table: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the path of every key in a nested table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def test_no_file_gives_the_defaults() -> None:
    """Without a file and overrides every key has its default."""
    assert load_config() == HeadraceConfig()


def test_default_toml_sets_every_key_to_its_default() -> None:
    """configs/default.toml is the defaults, written out."""
    table = tomllib.loads((CONFIGS / "default.toml").read_text())
    assert config_from_table(table) == HeadraceConfig()
    assert set(flattened(table)) == {
        path for path in key_paths() if not path.startswith("tenants.")
    }


def test_default_toml_comments_every_key_as_the_source_does() -> None:
    """In configs/default.toml the comment above a key is the docstring under its field, word for
    word.
    """
    comments = written_comments((CONFIGS / "default.toml").read_text())
    assert {path: comment for path, (comment, _) in comments.items()} == {
        path: " ".join(key_help(path).split()) for path in key_paths()
    }


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.name)
def test_every_shipped_configuration_is_accepted(path: Path) -> None:
    """Each file in configs/ passes all checks."""
    load_config(path)


def test_the_demo_keys_are_those_named_in_its_comments() -> None:
    """The two demo tenants have a key each and different default classes."""
    config = load_config(CONFIGS / "demo-two-keys.toml")
    assert [tenant.name for tenant in config.tenants] == ["alpha", "beta"]
    assert config.tenants[0].default_class != config.tenants[1].default_class


def test_the_demo_of_tenants_has_all_classes_and_the_keys_in_its_comments() -> None:
    """Five tenants, each class is somebody's default, and a key is `sk-demo-NAME`."""
    config = load_config(CONFIGS / "demo-tenants.toml")
    assert len(config.tenants) == 5
    assert {tenant.default_class for tenant in config.tenants} == set(CLASS_NAMES)
    for tenant in config.tenants:
        key = f"sk-demo-{tenant.name}"
        assert tenant.key_sha256 == (hashlib.sha256(key.encode()).hexdigest(),)


def test_no_tenant_of_the_demo_can_fill_the_engines_queue() -> None:
    """The queue is one for all: who is quiet is refused when others have filled it."""
    config = load_config(CONFIGS / "demo-tenants.toml")
    requests = sum(tenant.max_queued_requests for tenant in config.tenants)
    tokens = sum(tenant.max_queued_tokens for tenant in config.tenants)
    assert requests <= config.scheduler.max_queued_requests
    assert tokens <= config.scheduler.max_queued_tokens
    assert all(tenant.max_queued_requests for tenant in config.tenants)
    assert all(tenant.max_queued_tokens for tenant in config.tenants)


def test_toml_and_json_round_trip() -> None:
    """Writing a configuration and reading it again changes nothing."""
    overrides = [
        "engine.model='a \"b\" \\ ü'",
        "http.allowed_hosts=['a.b', \"c\"]",
        "tenants=[{name='a'}, {name='b'}]",
    ]
    config = load_config(None, overrides)
    assert config_from_table(tomllib.loads(config_to_toml(config))) == config
    assert config_from_json(config_to_json(config)) == config


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("engine.replicas=2", "engine.replicas", 2),
        ("engine.model=/models/my model", "engine.model", "/models/my model"),
        ('engine.model="quoted"', "engine.model", "quoted"),
        ("engine.prefix_cache=false", "engine.prefix_cache", False),
        ("engine.simulated_token_us = 2.5", "engine.simulated_token_us", 2.5),
        ("name=other", "name", "other"),
        ("http.allowed_hosts=['x.org']", "http.allowed_hosts", ("x.org",)),
    ],
)
def test_an_override_replaces_one_key(override: str, path: str, value: object) -> None:
    """`--set path=value` takes TOML values, and plain text for strings."""
    found: object = load_config(None, [override])
    for key in path.split("."):
        found = getattr(found, key)
    assert found == value


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    """`--set` is applied on top of the file."""
    file = tmp_path / "a.toml"
    file.write_text("[engine]\nreplicas = 2\nmax_num_seqs = 8\n")
    config = load_config(file, ["engine.replicas=3"])
    assert (config.engine.replicas, config.engine.max_num_seqs) == (3, 8)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("engine.replcas=2", ["engine.replcas", "engine.replicas"]),
        ("replicas=2", ["unknown key replicas", "engine.replicas"]),
        ("tenants=[{name='a', ky=[]}]", ["tenants.ky", "tenants.key_sha256"]),
        ("engine.replicas=two", ["engine.replicas", "int", "str"]),
        ("engine.replicas=2.5", ["engine.replicas", "int", "float"]),
        ("engine.prefix_cache=1", ["engine.prefix_cache", "bool"]),
        ("engine=3", ["engine"]),
        ("name.first=3", ["name"]),
        ("engine.max_num_seqs=0", ["engine.max_num_seqs = 0", "1 to 4096"]),
        ("engine.replicas", ["engine.replicas", "path=value"]),
        ("=3", ["path=value"]),
        ("engine..replicas=3", ["path=value"]),
    ],
)
def test_a_bad_override_is_refused_with_its_path(override: str, words: list[str]) -> None:
    """The message names the key path and what would be right."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_every_unknown_key_is_named_at_once() -> None:
    """All unknown keys are in one message."""
    with pytest.raises(ConfigError, match=r"a_key.*b_key"):
        config_from_table({"a_key": 1, "engine": {"b_key": 2}})


def test_an_override_below_a_plain_value_is_refused(tmp_path: Path) -> None:
    """A path cannot go through a value that is no table."""
    file = tmp_path / "a.toml"
    file.write_text('name = "x"\n')
    with pytest.raises(ConfigError, match="name is not a table"):
        load_config(file, ["name.first=3"])


@pytest.mark.parametrize("content", [b"a = = 1", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    """The message names the file."""
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML"):
        load_config(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The message names the file and why it cannot be read."""
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load_config(tmp_path / "none.toml")
