"""Compare a server's greedy output with a reference, case by case.

Three ways to ask: one case after the other; all cases at once among neighbours that leave midway,
on a server so short of memory that it must preempt; or teacher-forced, where the reference output
is part of the prompt and only its log-probabilities are compared (for engines in bfloat16).
A reference is trusted up to its first near tie: from there another output is no error.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts, Timeline
from scripts.bench.harness.command import parser_of, run_command

NEAR_TIE = 0.001  # nats between the best and the second: either may win
CLEAR_MARGIN = 0.3  # nats: here bfloat16 must agree with float32
NEIGHBOUR_EVENTS = (40, 160)  # a neighbour leaves after so many events: it grows, then goes


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt with the reference's output; `margins` are nats to the runner-up at each id."""

    id: int
    kind: str  # "chat": `text` is a user message; otherwise a plain prompt
    text: str = field(repr=False)
    prompt_ids: list[int] = field(repr=False)
    output_ids: list[int] = field(repr=False)
    margins: list[float] = field(repr=False)
    logprobs: list[float] = field(repr=False)

    @property
    def num_certain(self) -> int:
        """Output ids before the first near tie."""
        ties = (index for index, margin in enumerate(self.margins) if margin < NEAR_TIE)
        return next(ties, len(self.output_ids))

    def request(self, model: str) -> tuple[str, dict[str, object]]:
        """Return path and body of the request for this case."""
        body: dict[str, object] = {
            "model": model,
            "max_tokens": len(self.output_ids),
            "temperature": 0,
            "return_token_ids": True,
        }
        if self.kind == "chat":
            messages = [{"role": "user", "content": self.text}]
            return "/v1/chat/completions", {**body, "messages": messages, "logprobs": True}
        return "/v1/completions", {**body, "prompt": self.text, "logprobs": 1}


def read_cases(path: str) -> list[Case]:
    """Return the cases of a file; raise OSError or ValueError if it cannot be read."""
    names = Case.__slots__
    cases = json.loads(Path(path).read_text())["cases"]
    return [Case(**{name: case[name] for name in names}) for case in cases]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one answer differs from its case; `first_difference` -1 = none."""

    case_id: int
    prompt_ok: bool
    first_difference: int
    logprob_errors: list[float]
    error: str = ""


def compare(case: Case, answer: Timeline) -> Comparison:
    """Hold an answer against its case, up to the first near tie."""
    count = case.num_certain
    ours, reference = list(answer.token_ids), case.output_ids
    if answer.finish_reason == "stop" and len(ours) == len(reference) - 1:
        ours.append(reference[-1])  # servers may keep the ending control token to themselves
    unequal = (index for index in range(count) if ours[index : index + 1] != [reference[index]])
    first_difference = next(unequal, -1)
    certain = count if first_difference < 0 else first_difference
    logprobs = zip(answer.logprobs[:certain], case.logprobs[:certain], strict=False)
    return Comparison(
        case.id,
        answer.prompt_token_ids == case.prompt_ids,
        first_difference,
        [abs(ours - theirs) for ours, theirs in logprobs],
        answer.error,
    )


def figures_of(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return counts, and the cases that differ by id."""
    errors = [gap for each in comparisons for gap in each.logprob_errors]
    differ = {
        f"case {c.case_id}": c.first_difference for c in comparisons if c.first_difference >= 0
    }
    return {
        "answers": len(comparisons),
        "errors": sum(1 for each in comparisons if each.error),
        "error_examples": sorted({each.error for each in comparisons if each.error})[:3],
        "prompt_mismatches": sum(1 for each in comparisons if not each.prompt_ok),
        "output_mismatches": len(differ),
        "first_differences": differ,
        "logprobs_compared": len(errors),
        "logprob_diff_max": max(errors, default=float("nan")),
        "logprob_diff_p99": report.percentile(errors, 99),
    }


OUTPUT_BARS = (
    report.Bar("errors", "<=", 0),
    report.Bar("prompt_mismatches", "<=", 0),
    report.Bar("output_mismatches", "<=", 0),
    report.Bar("logprob_diff_max", "<=", 1e-3, "nats"),
)
CONCURRENT_BARS = (
    *OUTPUT_BARS,
    report.Bar("preemptions", ">=", 20),
    report.Bar("cancelled_neighbours", ">=", 7),
)
TEACHER_BARS = (
    report.Bar("errors", "<=", 0),
    report.Bar("argmax_mismatches", "<=", 0),
    report.Bar("logprob_diff_p99", "<=", 0.2, "nats"),
)


async def ask(client: Client, model: str, case: Case, delay_s: float = 0.0) -> Comparison:
    """Stream one case, after `delay_s` seconds, and compare."""
    await asyncio.sleep(delay_s)
    path, body = case.request(model)
    return compare(case, await client.stream(path, body, Timeline()))


async def run_serial(client: Client, model: str, cases: Sequence[Case]) -> dict[str, Any]:
    """Ask one case after the other."""
    return figures_of([await ask(client, model, case) for case in cases])


@dataclass(frozen=True, slots=True)
class Crowd:
    """The concurrent run: all arrive within `spread_s`; neighbours leave amid their output."""

    seed: int
    neighbours: int  # a round
    rounds: int  # at the most, until enough was preempted and cancelled
    spread_s: float


async def run_concurrent(
    client: Client, model: str, cases: Sequence[Case], crowd: Crowd
) -> dict[str, Any]:
    """Ask all cases at random times among neighbours that leave, until enough was preempted."""
    source = random.Random(crowd.seed)
    prompts = Prompts(1000, 40000, crowd.seed)

    async def neighbour() -> bool:
        await asyncio.sleep(source.uniform(0, crowd.spread_s))
        num_events = source.randrange(*NEIGHBOUR_EVENTS)
        return await leave_midway(client, model, prompts.make(source.randrange(16, 64)), num_events)

    before = await preemptions(client)
    comparisons: list[Comparison] = []
    cancelled = rounds = 0
    while rounds < crowd.rounds and (await preemptions(client) - before < 20 or cancelled < 7):
        rounds += 1
        left, answers = await asyncio.gather(
            asyncio.gather(*(neighbour() for _ in range(crowd.neighbours))),
            asyncio.gather(
                *(ask(client, model, case, source.uniform(0, crowd.spread_s)) for case in cases)
            ),
        )
        comparisons += answers
        cancelled += sum(left)
    return {
        **figures_of(comparisons),
        "rounds": rounds,
        "cancelled_neighbours": cancelled,
        "preemptions": await preemptions(client) - before,
    }


async def leave_midway(client: Client, model: str, prompt: list[int], num_events: int) -> bool:
    """Ask for much and close the connection after so much output; True if it came to that."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 768,
        "temperature": 0,
        "ignore_eos": True,
    }
    timeline = await client.stream("/v1/completions", body, Timeline(), leave_after=num_events)
    return timeline.cut


async def preemptions(client: Client) -> int:
    """Return the server's counter of preemptions; raise RuntimeError if it shows none."""
    status, raw = await client.get("/metrics")
    lines = [line for line in raw.decode().splitlines() if line.startswith("vllm:num_preemptions")]
    if status != 200 or not lines:
        raise RuntimeError(f"GET /metrics: {status}, no vllm:num_preemptions_total")
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if "_created" not in line)


async def run_teacher_forced(client: Client, model: str, cases: Sequence[Case]) -> dict[str, Any]:
    """Let the server score the reference's output after its prompt."""
    gaps: list[float] = []
    mismatches: dict[str, int] = {}
    errors: list[str] = []
    for case in cases:
        body = {
            "model": model,
            "prompt": case.prompt_ids + case.output_ids,
            "max_tokens": 0,
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
        }
        status, answer = await client.post("/v1/completions", body)
        if status != 200:
            errors.append(f"{status} {answer}"[:300])
            continue
        case_gaps, wrong = score(case, answer["choices"][0]["logprobs"])
        gaps += case_gaps
        mismatches |= {f"case {case.id}": wrong} if wrong else {}
    return {
        "answers": len(cases) - len(errors),
        "errors": len(errors),
        "error_examples": errors[:3],
        "argmax_mismatches": sum(mismatches.values()),
        "argmax_mismatches_by_case": mismatches,
        "logprobs_compared": len(gaps),
        "logprob_diff_max": max(gaps, default=float("nan")),
        "logprob_diff_p99": report.percentile(gaps, 99),
    }


def score(case: Case, logprobs: dict[str, Any]) -> tuple[list[float], int]:
    """Return the log-probability gaps and how many clear ids are not the server's best.

    The reference is greedy, so its ids are its own argmax: the server agrees where the id it was
    given has the best log-probability of the position.
    """
    start = len(case.prompt_ids)
    chosen = logprobs["token_logprobs"][start : start + len(case.output_ids)]
    best = logprobs["top_logprobs"][start : start + len(case.output_ids)]
    if len(chosen) != len(case.output_ids):
        return [float("inf")], len(case.output_ids)
    wrong = sum(
        1
        for ours, top, margin in zip(chosen, best, case.margins, strict=True)
        if margin > CLEAR_MARGIN and ours < max(top.values()) - 1e-6
    )
    gaps = [abs(ours - theirs) for ours, theirs in zip(chosen, case.logprobs, strict=True)]
    return gaps, wrong


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Ask as the arguments say and return the report."""
    cases = read_cases(args.cases)
    async with Client(args.url, args.key) as client:
        model = args.model or await client.model()
        bars: Sequence[report.Bar]
        if args.teacher_forced:
            figures, bars = await run_teacher_forced(client, model, cases), TEACHER_BARS
        elif args.concurrent:
            crowd = Crowd(args.seed, args.neighbours, args.rounds, args.spread)
            figures = await run_concurrent(client, model, cases, crowd)
            bars = CONCURRENT_BARS
        else:
            figures, bars = await run_serial(client, model, cases), OUTPUT_BARS
    return report.build("greedy", figures, bars, command=sys.argv[1:], model=model)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("greedy", __doc__)
    add = parse.add_argument
    add("--url", required=True)
    add("--cases", required=True, metavar="FILE", help="JSON: {cases: [{id, kind, text, …}]}")
    way = parse.add_mutually_exclusive_group()
    way.add_argument("--teacher-forced", action="store_true", help="score the reference's output")
    way.add_argument("--concurrent", action="store_true", help="all at once, among neighbours")
    add(
        "--neighbours", type=int, default=40, help="concurrent: requests that leave midway, a round"
    )
    add("--rounds", type=int, default=8, help="concurrent: at the most")
    add("--spread", type=float, default=4.0, help="concurrent: seconds in which requests arrive")
    add("--seed", type=int, default=1, help="concurrent: of arrivals and neighbours")
    add("--model", default="", help="default: the first of /v1/models")
    add("--key", default="", help="API key")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
