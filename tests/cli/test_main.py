"""The frame of the command line: help, verbs, errors and exit codes."""

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import frontends.cli.main
from core.terminal import ExitCode, Parser
from frontends.cli.verbs import VERBS, Verb
from tests.support.processes.cli import ESCAPE, HEADRACE, Run, assert_one_line, headrace, inside

ROOT = Path(frontends.cli.main.__file__).parents[2]
DOCS = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
HEAVY = {
    "torch",
    "numpy",
    "textual",
    "starlette",
    "uvicorn",
    "uvloop",
    "asyncio",
    "rich",
    "tokenizers",
}

VERB = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)


def parser_of(verb: Verb) -> argparse.ArgumentParser:
    """Return a verb's parser, as both ways of running it build it."""
    module = import_module(verb.module)
    parser = Parser(prog=f"headrace {verb.name}", description=module.DESCRIPTION)
    module.add_arguments(parser)
    return parser


def all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its sub-commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from all_parsers(sub)


def test_help_lists_every_verb_and_the_exit_codes() -> None:
    """Help is data: on stdout, without colour in a pipe."""
    run = headrace("--help")
    assert (run.code, run.err) == (0, "")
    assert all(f"  {verb.name}" in run.out and verb.summary in run.out for verb in VERBS)
    assert "Exit codes" in run.out
    assert ESCAPE not in run.out


@pytest.mark.parametrize("arguments", [[], ["-h"], ["help"]])
def test_help_comes_in_every_usual_way(arguments: list[str]) -> None:
    """Whoever types nothing sees what there is."""
    assert inside(*arguments) == inside("--help")


@VERB
def test_a_verb_has_help_and_every_flag_is_in_the_docs(verb: Verb) -> None:
    """docs/cli.md has a section for each verb and knows each of its flags."""
    assert f"## headrace {verb.name}\n" in DOCS
    for parser in all_parsers(parser_of(verb)):
        assert parser.format_help().startswith("usage: ")
        for action in parser._actions:
            assert action.help, (parser.prog, action.dest)
            flags = [flag for flag in action.option_strings if flag not in ("-h", "--help")]
            assert all(f"{flag}" in DOCS for flag in flags), (parser.prog, flags)


@VERB
def test_a_verb_that_a_process_of_its_own_runs_has_a_main(verb: Verb) -> None:
    """Running by dotted name works: the module runs when it is the main one."""
    source = Path(str(import_module(verb.module).__file__)).read_text(encoding="utf-8")
    guards = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    assert bool(guards) == verb.own_process


def test_an_unknown_verb_names_the_nearest_one() -> None:
    """A typing error is one line."""
    run = inside("sreve")
    assert_one_line(run, 2)
    assert "did you mean serve?" in run.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["ctl"],
        ["ctl", "explode"],
        ["ctl", "status", "--nme", "x"],
        ["ctl", "cancel", "a", "--tenant", "b"],
        ["ctl", "requests", "--limit", "many"],
        ["config", "check", "--config"],
        ["serve", "--replicas"],
        ["generate"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str]) -> None:
    """The line says where help is, instead of printing it all."""
    assert_one_line(inside(*arguments), 2)


def test_version_is_data() -> None:
    """As lines, and as JSON."""
    run = headrace("version", "--json")
    assert run.code == 0
    assert {"headrace", "python", "torch"} <= set(json.loads(run.out))
    assert inside("--version") == inside("version")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    """`headrace config keys | head -1` ends quietly."""
    command = f"{sys.executable} -P -m frontends.cli.main config keys --json | head -c 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("{", "")


def test_a_full_disk_is_one_line() -> None:
    """Output that cannot be stored is an error without a traceback, now and at exit."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [*HEADRACE, "version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert_one_line(Run(done.returncode, "", done.stderr), ExitCode.FAILED)


@pytest.mark.parametrize("module", ["frontends.cli.main", "frontends.cli.ctl"])
def test_nothing_heavy_is_loaded_for_help_and_ctl(module: str) -> None:
    """What takes long to import is not imported, which keeps both quick."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert {name.partition(".")[0] for name in done.stdout.split()} & HEAVY == set()
