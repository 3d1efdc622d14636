"""Measure what deciding a step costs: `EngineCore.next_plan` and `on_result`, nothing else.

A core runs at its full number of sequences in virtual time: decodes of all classes and tenants,
prompts that start, go on in chunks and end, blocks that fill, requests that finish, while new ones
keep the queue as long as it was. What a scheduler process does besides (results into spans, frames,
messages) is not in the figures; taking in the events is, as a figure of its own. The machine of the
policy's predictions is a `CostBasis`, as an executor brings it along.

Times are processor time of the thread. A decision never waits, so on an idle machine that is the
time that passes, and on a busy one its neighbours are not counted; `wall_us` is what passed. They
still slow it down: they empty the caches. `--repeats N` runs the same steps N times, and a step's
time is the least it took. Looking at `fill` costs time itself, so that is done on steps of its own.
As in a process of the engine, what lives at the start is frozen for the garbage collector.
"""

import argparse
import cProfile
import gc
import pstats
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from core.clock import NS_PER_US
from core.engine_core import EngineCore, configured_policy
from core.metering import Buckets, Metering
from core.policy.base import Policy, Step
from core.policy.cost_model import CostBasis
from core.policy.limits import Limits
from core.request import Request
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import RESULT_ROW, PlanFlag, StepPlan, StepResult, row_dtype
from core.scheduler.plan_rows import work_of_rows
from core.scheduler.settings import EngineSettings
from core.tenancy.classes import MAX_MS, ClassesConfig, TrafficClass
from scripts.bench.harness import report
from scripts.bench.harness.command import parser_of
from scripts.bench.harness.report import Bar, percentile

BASIS = CostBasis(
    step_ns=5e6, token_ns=60_000.0, pair_ns=1.0, decode_context_ns=2.0, decode_ns=5_000.0
)
BLOCK_SIZE = 32
MAX_MODEL_LEN = 4096
PROMPT_TOKENS = (32, 480)
OUTPUT_TOKENS = (100, 500)
CLASS_SHARES = (0.4, 0.355, 0.24, 0.005)
FEW_WAITING = 100
FAR_NS = 1 << 60
SOME_TOKEN = 2
FILL_SHARE = 4  # one step in so many more, in which `fill` is looked at
ARENA_TOKENS = 1 << 24  # several times what all spans take


class FillTimes:
    """How long the `fill` of a policy takes; the policy itself is asked directly."""

    def __init__(self, policy: Policy) -> None:
        """Put a watch around `policy.fill`."""
        self.fill_ns: list[int] = []
        self._fill = policy.fill
        policy.fill = self._timed  # type: ignore[method-assign]  # the core asks its attribute

    def _timed(self, step: Step) -> None:
        began_ns = time.thread_time_ns()
        self._fill(step)
        self.fill_ns.append(time.thread_time_ns() - began_ns)


@dataclass(slots=True)
class Times:
    """What each step took, ns, and what was in it."""

    plan: list[int] = field(default_factory=list)
    result: list[int] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    wall: list[int] = field(default_factory=list)
    decodes: list[int] = field(default_factory=list)
    prefill_tokens: list[int] = field(default_factory=list)
    starts: int = 0

    def take_least(self, again: "Times") -> None:
        """Let each step have taken what it took in the faster of two runs of the same steps."""
        for name in ("plan", "result", "arrivals", "wall"):
            pairs = zip(getattr(self, name), getattr(again, name), strict=True)
            setattr(self, name, [min(pair) for pair in pairs])


class Load:
    """An engine core under a steady load."""

    def __init__(self, policy: str, running: int, waiting: int, tenants: int) -> None:
        """Submit everything; nothing runs yet."""
        self._settings = settings_of(policy, running)
        self._random = np.random.default_rng(1)
        self._waiting = waiting
        self._tenants = [f"tenant{number}" for number in range(tenants)]
        self._rows = np.zeros(self._settings.num_rows, row_dtype(MAX_MODEL_LEN // BLOCK_SIZE))
        self._arena = np.zeros(ARENA_TOKENS, np.int32)
        self._arena_used = 0
        self._policy = configured_policy(self._settings)
        metering = Metering(Buckets((1.0,), (0.1,), (0.1,)), tenants + 2)
        self._core = EngineCore(self._settings, [self._rows], metering, self._policy)
        self._now_ns = 1_000_000_000
        self._num_requests = 0
        self._num_started = 0
        num_blocks = 2 * running * (PROMPT_TOKENS[1] + OUTPUT_TOKENS[1]) // BLOCK_SIZE
        self._core.on_events([ev.ReplicaUp(0, 1, num_blocks, BASIS)], self._now_ns)
        self._refill(waiting + running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return self._core.statistics().num_waiting

    @property
    def num_running(self) -> int:
        """Requests with a row."""
        return self._core.statistics().num_running

    def run(self, num_steps: int) -> Times:
        """Go on for so many steps."""
        times = Times()
        started = self._num_started
        for _ in range(num_steps):
            self._step(times)
        times.starts = self._num_started - started
        return times

    def run_fills(self, num_steps: int) -> list[int]:
        """Go on for so many steps, and return how long `fill` took in each, ns."""
        watch = FillTimes(self._policy)
        self.run(num_steps)
        return watch.fill_ns

    def _step(self, times: Times) -> None:
        clock, wall = time.thread_time_ns, time.perf_counter_ns
        wall_ns, began_ns = wall(), clock()
        plan = self._core.next_plan(0, self._now_ns)
        times.plan.append(clock() - began_ns)
        planned_ns = wall() - wall_ns
        assert plan is not None, "a step without work"
        work = work_of_rows(plan.rows)
        result = self._result(plan, BASIS.duration_ns(work))
        self._now_ns = result.finished_ns
        wall_ns, began_ns = wall(), clock()
        self._core.on_result(result, self._now_ns)
        times.result.append(clock() - began_ns)
        times.wall.append(planned_ns + wall() - wall_ns)
        times.decodes.append(work.num_decodes)
        times.prefill_tokens.append(work.num_prefill_tokens)
        self._core.take_outputs()
        missing = self._waiting - self._core.statistics().num_waiting
        self._num_started += max(0, missing)
        began_ns = clock()
        self._refill(missing)
        times.arrivals.append(clock() - began_ns)

    def _result(self, plan: StepPlan, duration_ns: int) -> StepResult:
        sampling = plan.rows[(plan.rows["flags"] & np.uint32(PlanFlag.SAMPLE)) != 0]
        rows = np.zeros(len(sampling), RESULT_ROW)
        rows["row"], rows["generation"] = sampling["row"], sampling["generation"]
        rows["token_id"] = SOME_TOKEN
        noise = float(self._random.lognormal(0, 0.03))
        end_ns = self._now_ns + int(noise * duration_ns)
        return StepResult(0, plan.epoch, plan.step, self._now_ns, end_ns, rows)

    def _refill(self, count: int) -> None:
        requests = [ev.Submit(self._make_request()) for _ in range(count)]
        if requests:
            self._core.on_events(requests, self._now_ns)

    def _make_request(self) -> Request:
        random = self._random
        self._num_requests += 1
        prompt_len = int(random.integers(*PROMPT_TOKENS))
        max_tokens = int(random.integers(*OUTPUT_TOKENS))
        name = self._num_requests.to_bytes(12, "little")
        span_start = self._span(prompt_len + max_tokens)
        return Request(
            request_id=self._num_requests,
            tokenizer=0,
            tenant=self._tenants[int(random.integers(len(self._tenants)))],
            token_ids=self._arena[span_start : span_start + prompt_len + max_tokens],
            span_start=span_start,
            prompt_len=prompt_len,
            max_tokens=max_tokens,
            arrival_ns=self._now_ns,
            sampling=SamplingParams(temperature=0.0),
            traffic_class=TrafficClass(int(random.choice(4, p=CLASS_SHARES))),
            prompt_digests=tuple(
                name + part.to_bytes(4, "little") for part in range(prompt_len // BLOCK_SIZE)
            ),
        )

    def _span(self, num_tokens: int) -> int:
        """Return where a new span begins; the arena is large enough to begin anew at its end."""
        if self._arena_used + num_tokens > ARENA_TOKENS:
            self._arena_used = 0
        start, self._arena_used = self._arena_used, self._arena_used + num_tokens
        return start


def settings_of(policy: str, running: int) -> EngineSettings:
    """Return limits under which the queue may be long and its requests may wait."""
    return EngineSettings(
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=running,
        max_num_batched_tokens=2 * running,
        max_num_partial_prefills=4,
        block_size=BLOCK_SIZE,
        prefix_cache=True,
        pipeline_depth=1,
        policy=policy,
        max_queued_requests=10**6,
        max_queued_tokens=10**12,
        queue_deadline_ns=FAR_NS,
        request_timeout_ns=FAR_NS,
        kv_headroom_fraction=0.02,
        max_preemptions=3,
        poison_crashes=2,
        limits=Limits(patient_classes()),
        eos_token_ids=(1,),
        digest_secret=b"of a benchmark",
    )


def patient_classes() -> ClassesConfig:
    """Return the classes with their caps and promised gaps, but with all the time for a start."""
    classes = ClassesConfig()
    patient = {
        each.label: replace(classes.of(each), ttft_ms=MAX_MS, queue_deadline_ms=MAX_MS)
        for each in TrafficClass
    }
    return ClassesConfig(**patient)


def warm_load(args: argparse.Namespace, running: int, waiting: int) -> Load:
    """Return a load in its steady state; the same each time."""
    load = Load(args.policy, running, waiting, args.tenants)
    load.run(warm_up_steps(running))
    gc.unfreeze()  # the load before this one
    gc.collect()
    gc.freeze()
    return load


def measure(args: argparse.Namespace, running: int, waiting: int) -> dict[str, Any]:
    """Return the figures of one load."""
    load = warm_load(args, running, waiting)
    times = load.run(args.steps)
    for _ in range(args.repeats - 1):
        load = warm_load(args, running, waiting)
        times.take_least(load.run(args.steps))
    decided = [plan + result for plan, result in zip(times.plan, times.result, strict=True)]
    return {
        "step_us": spread_us(decided),
        "next_plan_us": spread_us(times.plan),
        "of_which_fill_us": spread_us(load.run_fills(max(1, args.steps // FILL_SHARE))),
        "on_result_us": spread_us(times.result),
        "arrivals_us": spread_us(times.arrivals),
        "wall_us": spread_us(times.wall),
        "running": load.num_running,
        "decodes_per_step": round(float(np.mean(times.decodes)), 1),
        "prefill_tokens_per_step": round(float(np.mean(times.prefill_tokens)), 1),
        "starts_per_step": round(times.starts / args.steps, 3),
    }


def warm_up_steps(running: int) -> int:
    """Return how many steps fill all rows and spread the requests over their lives."""
    tokens = running * sum(PROMPT_TOKENS) / 2
    return int(tokens / running) + OUTPUT_TOKENS[1]


def spread_us(values_ns: Sequence[int]) -> dict[str, float]:
    """Return p50, p90, p99 and max, µs."""
    points = {f"p{p}": percentile(values_ns, p) for p in (50, 90, 99)} | {"max": max(values_ns)}
    return {name: round(value / NS_PER_US, 1) for name, value in points.items()}


def bars(policy: str, runnings: Sequence[int]) -> Iterator[Bar]:
    """Yield the limits at 256 running, and that the queue's length does not matter."""
    if 256 in runnings:
        yield Bar(f"{policy}.running_256.step_us.p50", "<=", 300, "µs")
        yield Bar(f"{policy}.running_256.step_us.p99", "<=", 1000, "µs")
    for running in runnings:
        yield Bar(f"{policy}.running_{running}.waiting_ratio", "<=", 1.15, "of few waiting")


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure every size, with the queue and with a short one, and return the report."""
    figures: dict[str, Any] = {}
    for running in args.running:
        long = measure(args, running, args.waiting)
        short = measure(args, running, FEW_WAITING)
        long["few_waiting_step_us"] = short["step_us"]
        long["waiting_ratio"] = round(long["step_us"]["p50"] / short["step_us"]["p50"], 3)
        figures[f"running_{running}"] = long
    return report.build(
        "scheduler_step",
        {args.policy: figures},
        [*bars(args.policy, args.running), *args.bar],
        command=sys.argv[1:],
    )


def profile(args: argparse.Namespace) -> int:
    """Print where the time of the first size goes, by function."""
    load = warm_load(args, args.running[0], args.waiting)
    profiler = cProfile.Profile()
    profiler.runcall(load.run, args.steps)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
    return 0


def numbers(text: str) -> list[int]:
    """Read `256,1024`; raise ValueError otherwise."""
    return [int(part) for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("scheduler_step", __doc__)
    add = parse.add_argument
    add("--policy", default="headrace", help="headrace, fcfs, priority (default: headrace)")
    add("--running", type=numbers, default=[256, 1024], metavar="N,…", help="requests that run")
    add("--waiting", type=int, default=10_000, help="requests that wait (default: 10000)")
    add("--tenants", type=int, default=100, help="whose they are (default: 100)")
    add("--steps", type=int, default=1500, help="steps that are timed (default: 1500)")
    add("--repeats", type=int, default=1, help="how often the same steps are run (default: 1)")
    add("--bar", type=report.parse_bar, action="append", default=[], metavar="NAME<=LIMIT",
        help="one more limit on a figure")  # fmt: skip
    add("--profile", action="store_true", help="print where the time goes, and measure nothing")
    return parse


def main() -> int:
    """Run the command line; the exit status is 1 if a bar fails, 2 if nothing could be measured."""
    args = parser().parse_args()
    if args.profile:
        return profile(args)
    return report.run("scheduler_step", lambda: run(args), args.json)


if __name__ == "__main__":
    sys.exit(main())
