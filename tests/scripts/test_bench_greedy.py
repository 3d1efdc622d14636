"""The comparison with a reference finds a wrong id, a wrong prompt and a wrong score."""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.benchmarks import greedy
from tests.support.http.fake_openai import FakeServer, encode, encode_chat, logprob_of, next_id


def case(number: int, kind: str, text: str, length: int, **changes: object) -> dict[str, Any]:
    """Return the case that a correct server answers."""
    prompt = encode_chat([{"content": text}]) if kind == "chat" else encode(text)
    ids = list(prompt)
    for _ in range(length):
        ids.append(next_id(ids))
    output = ids[len(prompt) :]
    return {
        "id": number,
        "kind": kind,
        "text": text,
        "prompt_ids": prompt,
        "output_ids": output,
        "margins": [1.0] * length,
        "logprobs": [logprob_of(token) for token in output],
    } | changes


def run(path: Path, server: FakeServer, cases: list[dict[str, Any]], *flags: str) -> dict[str, Any]:
    """Run the command's core against a running server."""
    path.write_text(json.dumps({"cases": cases}))

    async def compare() -> dict[str, Any]:
        async with server.running():
            arguments = ["--url", server.url, "--cases", str(path), *flags]
            args: argparse.Namespace = greedy.parser().parse_args(arguments)
            return await greedy.run(args)

    return asyncio.run(compare())


@pytest.fixture
def cases() -> list[dict[str, Any]]:
    """Return a chat case and a plain one."""
    return [case(1, "chat", "hello", 6), case(2, "completion", "once", 5)]


def test_a_correct_server_passes(tmp_path: Path, cases: list[dict[str, Any]]) -> None:
    """All prompts, ids and log-probabilities agree."""
    report = run(tmp_path / "cases.json", FakeServer(), cases)
    assert report["ok"], report["bars"]
    assert report["figures"]["logprobs_compared"] == 11


def test_one_wrong_id_fails(tmp_path: Path, cases: list[dict[str, Any]]) -> None:
    """The place of the first difference is reported for each case."""
    report = run(tmp_path / "cases.json", FakeServer(wrong_at=3), cases)
    assert not report["ok"]
    assert report["figures"]["first_differences"] == {"case 1": 3, "case 2": 3}


def test_an_output_that_ends_early_fails(tmp_path: Path, cases: list[dict[str, Any]]) -> None:
    """A missing id differs as a wrong one does."""
    report = run(tmp_path / "cases.json", FakeServer(fail_after=2), cases)
    assert report["figures"]["errors"] == 2
    assert report["figures"]["first_differences"] == {"case 1": 2, "case 2": 2}


def test_after_a_near_tie_everything_goes(tmp_path: Path) -> None:
    """A wrong id after the first near tie is no error; a wrong one before it is."""
    tied = case(1, "chat", "hello", 6, margins=[1.0, 1.0, 0.0005, 1.0, 1.0, 1.0])
    assert run(tmp_path / "cases.json", FakeServer(wrong_at=2), [tied])["ok"]
    assert not run(tmp_path / "cases.json", FakeServer(wrong_at=1), [tied])["ok"]


def test_a_wrong_prompt_or_logprob_fails(tmp_path: Path) -> None:
    """Prompt ids are compared whole and log-probabilities to a thousandth."""
    prompt = case(1, "chat", "hello", 6, prompt_ids=[1, 2, 3])
    score = case(2, "completion", "once", 2, logprobs=[-0.5, -0.5])
    report = run(tmp_path / "cases.json", FakeServer(), [prompt, score])
    failed = {bar["name"] for bar in report["bars"] if not bar["ok"]}
    assert failed == {"prompt_mismatches", "logprob_diff_max"}


def test_teacher_forcing_scores_the_reference(tmp_path: Path, cases: list[dict[str, Any]]) -> None:
    """A server that agrees passes; an id that is not its best fails where the margin is clear."""
    assert run(tmp_path / "cases.json", FakeServer(), cases, "--teacher-forced")["ok"]
    cases[0]["output_ids"][-1] += 1
    report = run(tmp_path / "cases.json", FakeServer(), cases, "--teacher-forced")
    assert report["figures"]["argmax_mismatches_by_case"] == {"case 1": 1}
    cases[0]["margins"][-1] = 0.2
    report = run(tmp_path / "cases.json", FakeServer(), cases, "--teacher-forced")
    assert report["figures"]["argmax_mismatches"] == 0


def test_too_few_preemptions_fail_the_concurrent_run(
    tmp_path: Path, cases: list[dict[str, Any]]
) -> None:
    """Outputs that agree prove nothing if the server never had to preempt."""
    flags = ("--concurrent", "--neighbours", "8", "--spread", "0.2", "--rounds", "1")
    report = run(tmp_path / "cases.json", FakeServer(pause_s=0.002), cases, *flags)
    failed = {bar["name"] for bar in report["bars"] if not bar["ok"]}
    assert failed == {"preemptions"}
    assert report["figures"]["cancelled_neighbours"] == 8


def test_the_concurrent_run_goes_on_until_enough_was_preempted(
    tmp_path: Path, cases: list[dict[str, Any]]
) -> None:
    """Each round asks every case again; all answers count."""
    server = FakeServer(pause_s=0.002, preemptions=1)
    flags = ("--concurrent", "--neighbours", "8", "--spread", "0.1")
    report = run(tmp_path / "cases.json", server, cases, *flags)
    assert report["ok"], report["bars"]
    assert report["figures"]["answers"] == 2 * report["figures"]["rounds"] == 4
