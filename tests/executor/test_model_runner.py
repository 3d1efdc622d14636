"""Whole steps on a tiny model, against a dense forward without cache, blocks or batches."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.models.model_config import read_model_config
from core.scheduler.plan import RecordArray, ResultError
from tests.support.executor.plan_driver import PlanDriver, Running
from tests.support.executor.runner_executor import NUM_BLOCKS, RunnerExecutor
from tests.support.models.dense_llama import DenseLlama
from tests.support.models.tiny_model import write_tiny_model

MakeDriver = Callable[..., PlanDriver]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def dense(directory: Path) -> DenseLlama:
    """The reference."""
    return DenseLlama(directory)


@pytest.fixture
def make_driver(directory: Path) -> MakeDriver:
    """Return a maker of drivers; keywords choose the implementation."""
    torch.set_num_threads(1)

    def make(
        *,
        path: str = "cpp",
        dtype: torch.dtype = torch.float32,
        block_size: int = 8,
        seed: int = 0,
        logits_bytes_max: int = 2**24,
    ) -> PlanDriver:
        def executor(rows: RecordArray, spans: object, clock: object) -> RunnerExecutor:
            return RunnerExecutor(
                directory,
                rows,
                list(spans),  # type: ignore[call-overload]
                dtype=dtype,
                path=path,
                block_size=block_size,
                logits_bytes_max=logits_bytes_max,
            )

        return PlanDriver(executor, block_size=block_size, num_rows=16, seed=seed)

    return make


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of 1 to 40 tokens."""
    random = np.random.default_rng(seed)
    return [random.integers(2, 300, random.integers(1, 41)).tolist() for _ in range(count)]


def executor_of(driver: PlanDriver) -> RunnerExecutor:
    """The driver's executor with its parts."""
    assert isinstance(driver.executor, RunnerExecutor)
    return driver.executor


@pytest.mark.parametrize("path", ["cpp", "torch"])
@pytest.mark.parametrize("block_size", [8, 32])
def test_greedy_equals_the_dense_model(
    make_driver: MakeDriver, dense: DenseLlama, path: str, block_size: int
) -> None:
    """Streams in random chunks beside each other give the dense model's tokens and logprobs."""
    driver = make_driver(path=path, block_size=block_size)
    running = [driver.add(prompt, 8, num_logprobs=0) for prompt in prompts(6)]
    driver.finish(running)
    for prompt, sequence in zip(prompts(6), running, strict=True):
        assert sequence.outputs == dense.greedy(prompt, 8)
        logprobs = dense.logprobs(prompt + sequence.outputs)
        expected = [
            float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(sequence.outputs)
        ]
        assert sequence.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_stream_is_bit_identical_alone_and_in_any_company(
    make_driver: MakeDriver, dtype: torch.dtype
) -> None:
    """Chunking, neighbours, preemption and place change no token and no bit of a logprob."""
    prompt = prompts(1, seed=9)[0]
    options: dict[str, Any] = {"num_logprobs": 0, "temperature": 0.8, "seed": 11}
    quiet = make_driver(dtype=dtype)
    alone = quiet.add(prompt, 12, **options)
    quiet.finish([alone], chunk_max=100)
    for seed in range(3):
        driver = make_driver(dtype=dtype, seed=seed)
        others = [driver.add(other, 12, temperature=0.5) for other in prompts(5, seed)]
        watched = driver.add(prompt, 12, **options)
        for _ in range(3):
            step(driver, [*others, watched], chunk_max=5)
            driver.preempt(watched)
        driver.finish([*others, watched], chunk_max=7)
        assert watched.outputs == alone.outputs
        assert watched.logprobs == alone.logprobs


def step(driver: PlanDriver, running: list[Running], chunk_max: int) -> None:
    """One step of all that are not done."""
    chunks = {s: driver.random_chunk(s, chunk_max) for s in running if not s.done}
    driver.step(chunks)


def test_a_reused_row_and_its_blocks_leak_nothing(
    make_driver: MakeDriver, dense: DenseLlama
) -> None:
    """After a tenant with every option set, the next one of the row is served as if first."""
    driver = make_driver()
    first = driver.add(
        prompts(1, 3)[0],
        6,
        row=2,
        temperature=1.5,
        seed=5,
        top_k=3,
        repetition_penalty=1.9,
        frequency_penalty=2.0,
        num_logprobs=4,
        num_prompt_logprobs=2,
        num_logit_bias=1,
        logit_bias_ids=7,
        logit_bias_values=50.0,
    )
    driver.finish([first])
    driver.release(first)
    driver.free_blocks.reverse()  # the same blocks again
    for cache in executor_of(driver).caches:
        cache[first.blocks] = math.nan
    prompt = prompts(1, 4)[0]
    second = driver.add(prompt, 6, row=2)
    driver.finish([second])
    assert second.outputs == dense.greedy(prompt, 6)


def test_a_shared_prefix_gives_the_same_output(make_driver: MakeDriver) -> None:
    """A sequence that starts on another's full blocks continues bit by bit like one of its own."""
    driver = make_driver(block_size=8)
    prompt = prompts(1, 8)[0] * 2
    owner = driver.add(prompt, 6, num_logprobs=0)
    driver.finish([owner])
    guest = driver.add(prompt, 6, num_logprobs=0, shared_blocks=owner.blocks[: len(prompt) // 8])
    if guest.computed == len(prompt):
        guest.computed -= 1
    driver.finish([guest])
    assert guest.outputs == owner.outputs
    assert guest.logprobs == owner.logprobs


def test_feedback_replaces_the_span(make_driver: MakeDriver) -> None:
    """With FEEDBACK the token comes from the step before, while the span does not have it yet."""
    prompt = prompts(1, 5)[0]
    plain, piped = make_driver(), make_driver()
    expected = plain.add(prompt, 5)
    plain.finish([expected])
    sequence = piped.add(prompt, 5)
    piped.step({sequence: len(prompt)}, feedback=True)
    while not sequence.done:
        piped.step({sequence: 1}, feedback=True)
    assert sequence.outputs == expected.outputs


def test_feedback_sees_penalties_of_all_tokens(make_driver: MakeDriver) -> None:
    """Penalties count the fed-back token too."""
    prompt = prompts(1, 6)[0]
    plain, piped = make_driver(), make_driver()
    options: dict[str, Any] = {"frequency_penalty": 2.0, "presence_penalty": 1.0}
    options["repetition_penalty"] = 1.2
    expected = plain.add(prompt, 8, **options)
    plain.finish([expected])
    sequence = piped.add(prompt, 8, **options)
    piped.step({sequence: len(prompt)}, feedback=True)
    while not sequence.done:
        piped.step({sequence: 1}, feedback=True)
        written = sequence.span_start + sequence.total - 2  # one step late, as the scheduler
        piped.arena[written] = sequence.outputs[-2]
    assert sequence.outputs == expected.outputs
    assert len(set(expected.outputs)) > 1


def test_feedback_of_an_unknown_row_is_stale(make_driver: MakeDriver) -> None:
    """After the rows are forgotten, a plan that wants the last token of one gets an error."""
    driver = make_driver()
    sequence = driver.add([5, 6], 4)
    driver.step({sequence: 2})
    driver.executor.forget_rows()
    result = driver.executor.execute(driver.plan({sequence: 1}, feedback=True))
    assert result.rows["error"].tolist() == [ResultError.STALE_ROW]


def spoil_generation(driver: PlanDriver, victim: Running) -> None:
    """The row belongs to another generation than the plan says."""
    driver.rows["generation"][victim.row] += 1


def spoil_token(driver: PlanDriver, victim: Running) -> None:
    """The span holds an id outside the vocabulary."""
    driver.arena[victim.span_start + 1] = 300


def spoil_token_negative(driver: PlanDriver, victim: Running) -> None:
    """The span holds a negative id."""
    driver.arena[victim.span_start + 1] = -1


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (spoil_generation, ResultError.STALE_ROW),
        (spoil_token, ResultError.BAD_TOKEN),
        (spoil_token_negative, ResultError.BAD_TOKEN),
    ],
)
def test_a_bad_row_harms_only_itself(
    make_driver: MakeDriver,
    dense: DenseLlama,
    spoil: Callable[[PlanDriver, Running], None],
    error: ResultError,
) -> None:
    """A row that cannot be computed gets its error; its neighbours get their tokens."""
    driver = make_driver()
    chosen = [[2, 3, 4], [9, 9, 9], [7, 8, 6]]
    running = [driver.add(prompt, 1) for prompt in chosen]
    spoil(driver, running[1])
    result = driver.executor.execute(driver.plan(dict.fromkeys(running, 3)))
    assert result.rows["error"].tolist() == [ResultError.NONE, error, ResultError.NONE]
    tokens = result.rows["token_id"].tolist()
    assert tokens[1] == -1
    assert [tokens[0], tokens[2]] == [dense.greedy(chosen[0], 1)[0], dense.greedy(chosen[2], 1)[0]]


def test_logits_that_are_not_finite_harm_only_their_row(
    make_driver: MakeDriver, dense: DenseLlama
) -> None:
    """NaN in one sequence's cache becomes NON_FINITE for it and nothing for the others."""
    driver = make_driver()
    running = [driver.add(prompt, 4) for prompt in ([5, 6, 7], [8, 9, 10])]
    driver.step(dict.fromkeys(running, 3))
    executor_of(driver).caches[0][running[0].blocks[0]] = math.nan
    result = driver.executor.execute(driver.plan(dict.fromkeys(running, 1)))
    assert result.rows["error"].tolist() == [ResultError.NON_FINITE, ResultError.NONE]
    assert result.rows["token_id"].tolist() == [-1, dense.greedy([8, 9, 10], 2)[1]]


@pytest.mark.parametrize("logits_bytes_max", [1, 2**24], ids=["one-by-one", "at-once"])
def test_prompt_logprobs_equal_the_dense_model(
    make_driver: MakeDriver, dense: DenseLlama, logits_bytes_max: int
) -> None:
    """In any chunking each prompt position gets its token's logprob and the best ones."""
    driver = make_driver(logits_bytes_max=logits_bytes_max)
    prompt = prompts(1, 12)[0]
    sequence = driver.add(prompt, 1, num_prompt_logprobs=2)
    neighbour = driver.add(prompts(1, 13)[0], 3)
    driver.finish([sequence, neighbour], chunk_max=7)
    entries = [sequence.prompt_entries[i : i + 3] for i in range(0, 3 * len(prompt), 3)]
    assert len(sequence.prompt_entries) == 3 * len(prompt)
    assert [entry[0][0] for entry in entries] == prompt
    assert all(math.isnan(logprob) for _, logprob in entries[0])
    assert [token for token, _ in entries[0][1:]] == [-1, -1]
    expected = dense.logprobs(prompt)
    for position in range(1, len(prompt)):
        before = expected[position - 1]
        assert entries[position][0][1] == pytest.approx(float(before[prompt[position]]), abs=1e-4)
        assert [token for token, _ in entries[position][1:]] == before.topk(2).indices.tolist()


def test_many_rows_are_sampled_in_slices(make_driver: MakeDriver) -> None:
    """Bounded logits memory changes nothing in the results, alternatives included."""
    results = []
    for logits_bytes_max in (1, 2**24):
        driver = make_driver(logits_bytes_max=logits_bytes_max)
        running = [driver.add(prompt, 1, num_logprobs=i % 3) for i, prompt in enumerate(prompts(7))]
        chunks = {sequence: sequence.prompt_len for sequence in running}
        results.append(driver.step(chunks))
    assert results[0].rows.tolist() == results[1].rows.tolist()
    assert results[0].logprobs.tolist() == results[1].logprobs.tolist()


def test_rows_without_sample_are_not_reported(make_driver: MakeDriver) -> None:
    """A prefill chunk that ends before the prompt does has no result row."""
    driver = make_driver()
    sequence = driver.add([4, 5, 6, 7], 2)
    assert len(driver.step({sequence: 2}).rows) == 0
    assert driver.step({sequence: 2}).rows["row"].tolist() == [sequence.row]


def test_min_tokens_hold_back_end_and_stop_tokens(
    make_driver: MakeDriver, dense: DenseLlama, directory: Path
) -> None:
    """Until min_tokens are out no end or stop token can be chosen, then both can."""
    end = read_model_config(directory).eos_token_ids[0]
    driver = make_driver()
    wish: dict[str, Any] = {"num_logit_bias": 2, "logit_bias_ids": [end, 77] + [0] * 298}
    wish["logit_bias_values"] = [100.0, 90.0] + [0.0] * 298
    stops: dict[str, Any] = {"num_stop_token_ids": 1, "stop_token_ids": [77] + [0] * 15}
    sequence = driver.add([4, 5, 6], 4, min_tokens=2, **wish, **stops)
    driver.finish([sequence])
    assert sequence.outputs[:2] == dense.greedy([4, 5, 6], 2)
    assert sequence.outputs[2:] == [end, end]


@pytest.mark.parametrize("block", [-1, NUM_BLOCKS])
def test_a_block_outside_the_pool_is_our_bug(make_driver: MakeDriver, block: int) -> None:
    """A block table that points outside the pool stops the process before it writes anywhere."""
    driver = make_driver()
    sequence = driver.add([4, 5, 6], 2)
    driver.rows["block_table"][sequence.row, 0] = block
    with pytest.raises(IndexError, match="outside the pool"):
        driver.executor.execute(driver.plan({sequence: 3}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("row", 16),
        ("row", -1),
        ("num_new_tokens", 0),
        ("num_new_tokens", 300),
        ("first_position", -1),
        ("first_position", 600),
    ],
)
def test_a_plan_outside_its_bounds_is_our_bug(
    make_driver: MakeDriver, name: str, value: int
) -> None:
    """Rows, positions and counts outside what exists stop the process before it computes."""
    driver = make_driver()
    plan = driver.plan({driver.add([4, 5, 6], 2): 3})
    plan.rows[name] = value
    driver.arena[:] = 5
    with pytest.raises(IndexError):
        driver.executor.execute(plan)


@dataclass
class Later:
    """The end of a step, which comes when the test says so."""

    is_over: bool = False
    waited: bool = False

    def is_here(self) -> bool:
        """As the test says."""
        return self.is_over

    def get(self) -> None:
        """Note that somebody waited."""
        self.waited = True


def test_a_chunk_without_answers_ends_when_the_device_says_so(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that samples nothing is not done before it is computed, and is waited for."""
    driver, end = make_driver(), Later()
    executor = executor_of(driver)
    monkeypatch.setattr(executor.backend, "end", lambda: end)
    step = executor.runner.launch(driver.plan({driver.add([4, 5, 6], 2): 2}).rows)
    assert not step.is_done()
    end.is_over = True
    assert step.is_done()
    executor.runner.collect(step)
    assert end.waited


def test_a_span_outside_its_arena_is_our_bug(make_driver: MakeDriver) -> None:
    """A span that begins before or ends after its arena stops the process."""
    driver = make_driver()
    sequence = driver.add([4, 5, 6], 2)
    for start in (-1, len(driver.arena) - 1):
        driver.rows["span_start"][sequence.row] = start
        with pytest.raises(IndexError):
            driver.executor.execute(driver.plan({sequence: 3}))
