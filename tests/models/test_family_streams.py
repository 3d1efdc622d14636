"""Families in the executor: streams beside each other, sampled step by step, as in the engine."""

from pathlib import Path

import numpy as np
import pytest

from core.executor.factory import make_executor
from core.executor.protocol import Executor, ExecutorSettings
from core.scheduler.plan import RecordArray
from tests.support.executor.plan_driver import ManualClock, PlanDriver
from tests.support.kernels.native_kernels import kernel_cache
from tests.support.models.transformers_models import CASES, reference_logits, write_model

BLOCK_SIZE = 8
NUM_BLOCKS = 64


def driver_for(directory: Path) -> PlanDriver:
    """A driver of the executor that the engine runs, on one thread in float32."""
    settings = ExecutorSettings(
        model_directory=directory,
        cache_directory=kernel_cache(),
        dtype="float32",
        threads=1,
        block_size=BLOCK_SIZE,
        num_kv_blocks=NUM_BLOCKS,
    )

    def executor(rows: RecordArray, spans: object, clock: object) -> Executor:
        assert isinstance(clock, ManualClock)
        arenas: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = list(spans)  # type: ignore[call-overload]
        return make_executor("local", settings, rows, arenas, clock, clock.sleep_ns)

    return PlanDriver(executor, block_size=BLOCK_SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "olmo2", "phi3", "qwen2-window", "mistral"])
def test_greedy_streams_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """In random chunks beside each other, over windows, every token is the reference's best."""
    directory = write_model(tmp_path, CASES[name])
    random = np.random.default_rng(5)
    prompts = [random.integers(2, 301, length).tolist() for length in (33, 3, 18)]
    driver = driver_for(directory)
    assert driver.info.kernel_path == "cpp"
    running = [driver.add(prompt, 8, num_logprobs=0) for prompt in prompts]
    driver.finish(running)
    for prompt, stream in zip(prompts, running, strict=True):
        logits = reference_logits(directory, [*prompt, *stream.outputs])[len(prompt) - 1 : -1]
        assert stream.outputs == logits.argmax(dim=1).tolist()
        best = logits.log_softmax(dim=1).amax(dim=1)
        assert stream.logprobs == pytest.approx(best.tolist(), abs=1e-4)
