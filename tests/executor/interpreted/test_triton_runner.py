"""Whole steps by Triton kernels: what is tested of the CPU's, and that both say the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.scheduler.plan import PLAN_ROW, PlanFlag, RecordArray
from tests.executor.test_model_runner import (
    MakeDriver,
    dense,  # noqa: F401
    prompts,
    test_a_bad_row_harms_only_itself,  # noqa: F401
    test_a_reused_row_and_its_blocks_leak_nothing,  # noqa: F401
    test_feedback_of_an_unknown_row_is_stale,  # noqa: F401
    test_feedback_replaces_the_span,  # noqa: F401
    test_feedback_sees_penalties_of_all_tokens,  # noqa: F401
    test_min_tokens_hold_back_end_and_stop_tokens,  # noqa: F401
    test_prompt_logprobs_equal_the_dense_model,  # noqa: F401
)
from tests.support.executor.plan_driver import PlanDriver, Running
from tests.support.executor.runner_executor import RunnerExecutor
from tests.support.kernels.triton_device import DEVICE
from tests.support.models.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as small as can be: the interpreter takes a millisecond for what takes one a µs."""
    return write_tiny_model(tmp_path_factory.mktemp("model"), layers=1, heads=2, kv_heads=1)


@pytest.fixture
def make_driver(directory: Path) -> MakeDriver:
    """Return a maker of drivers; Triton kernels unless `path` says otherwise."""
    torch.set_num_threads(1)

    def make(
        *, path: str = "triton", block_size: int = 8, seed: int = 0, logits_bytes_max: int = 2**24
    ) -> PlanDriver:
        device = DEVICE if path == "triton" else "cpu"

        def executor(rows: object, spans: object, clock: object) -> RunnerExecutor:
            return RunnerExecutor(
                directory,
                rows,  # type: ignore[arg-type]
                list(spans),  # type: ignore[call-overload]
                path=path,
                device=device,
                block_size=block_size,
                logits_bytes_max=logits_bytes_max,
            )

        return PlanDriver(executor, block_size=block_size, num_rows=16, seed=seed)

    return make


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 1.3, "seed": 8, "top_k": 12, "top_p": 0.8, "num_logprobs": 3},
    {"temperature": 0.7, "seed": 9, "min_p": 0.05, "choice": 2},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "num_logprobs": 1},
    {"num_logit_bias": 1, "logit_bias_ids": 9, "logit_bias_values": 2.5, "num_prompt_logprobs": 1},
)


def serve(driver: PlanDriver) -> tuple[list[list[int]], list[list[float]]]:
    """Serve prompts with all options beside each other, some preempted; return tokens, logprobs."""
    running = []
    for prompt, options in zip(prompts(6, 21), OPTIONS, strict=True):
        running.append(driver.add(prompt, 6, **{"num_logprobs": 0, **options}))
    for victim in (running[2], running[4]):
        driver.step({each: driver.random_chunk(each, 9) for each in running if not each.done})
        driver.preempt(victim)
    driver.finish(running, chunk_max=9)
    return [each.outputs for each in running], [
        [*each.logprobs, *(value for _, value in each.prompt_entries)] for each in running
    ]


def test_both_backends_serve_the_same(make_driver: MakeDriver) -> None:
    """Prompts, decodes, preempted rows and every way of sampling: equal tokens, near logprobs."""
    tokens, logprobs = serve(make_driver())
    expected, expected_logprobs = serve(make_driver(path="cpp"))
    assert tokens == expected
    for got, wanted in zip(logprobs, expected_logprobs, strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-4)


def decode(sequence: Running, position: int) -> RecordArray:
    """The plan of one decode at `position`, whose token the step before has sampled."""
    flags = PlanFlag.SAMPLE | PlanFlag.FEEDBACK
    return np.array([(sequence.row, sequence.generation, 1, position, int(flags))], PLAN_ROW)


@pytest.mark.parametrize("options", [{}, {"frequency_penalty": 2.0, "temperature": 1.0}])
def test_a_step_is_launched_while_the_last_one_runs(
    make_driver: MakeDriver, options: dict[str, Any]
) -> None:
    """Tokens that nobody has seen yet are fed back: a stream two steps deep is the same."""
    prompt = prompts(1, 31)[0]
    plain, ahead = make_driver(), make_driver()
    expected = plain.add(prompt, 6, **options)
    plain.finish([expected])
    sequence = ahead.add(prompt, 6, **options)
    executor = ahead.executor
    assert isinstance(executor, RunnerExecutor)
    runner = executor.runner
    with torch.inference_mode():
        launched = [runner.launch(ahead.plan({sequence: len(prompt)}).rows)]
        outputs = []
        for index in range(5):
            launched.append(runner.launch(decode(sequence, len(prompt) + index)))
            rows, _ = runner.collect(launched.pop(0))
            outputs += rows["token_id"].tolist()
            ahead.arena[sequence.span_start + len(prompt) + index] = outputs[-1]
        outputs += runner.collect(launched.pop())[0]["token_id"].tolist()
    assert outputs == expected.outputs
