"""The engine core and a real model together: preemptions of every kind change no token."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from core.engine_core import EngineCore
from core.executor.local import LocalExecutor
from core.executor.protocol import ExecutorSettings
from core.metering import Metering, PreemptionKind
from core.policy.base import Policy
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import StepPlan, row_dtype
from core.simulation.engine import BUCKETS
from tests.support.executor.plan_driver import ManualClock
from tests.support.kernels.native_kernels import kernel_cache
from tests.support.models.tiny_model import write_tiny_model
from tests.support.scheduler.checked_engine import make_settings
from tests.support.scheduler.preempting_policies import ScriptedPolicy, WhimsicalPolicy

BLOCK_SIZE = 8
NUM_REQUESTS = 8
PREFIX = list(range(20, 40))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def prompts() -> list[list[int]]:
    """Return prompts of different lengths; every second one begins like the others of its kind."""
    random = Random(5)
    return [
        (PREFIX if i % 2 else [])
        + [random.randrange(20, 280) for _ in range(random.randint(1, 30))]
        for i in range(NUM_REQUESTS)
    ]


def run(
    model: Path, num_blocks: int, depth: int, whims: int | None
) -> tuple[list[list[int]], Metering]:
    """Serve all prompts; `whims` is the seed of needless preemptions. Return tokens, counters."""
    settings = make_settings(
        block_size=BLOCK_SIZE, pipeline_depth=depth, eos_token_ids=(), max_num_seqs=4
    )
    rows = np.zeros(settings.num_rows, row_dtype(settings.max_blocks_per_seq))
    arena = np.zeros(4096, np.int32)
    executor = LocalExecutor(
        ExecutorSettings(
            model_directory=model,
            cache_directory=kernel_cache(),
            dtype="float32",
            threads=1,
            max_model_len=256,
            block_size=BLOCK_SIZE,
            num_kv_blocks=num_blocks,
            swap_memory_bytes=2**20,
        ),
        rows,
        [arena],
        ManualClock(),
    )
    info = executor.load()
    policy: Policy = ScriptedPolicy(settings)
    if whims is not None:
        policy = WhimsicalPolicy(settings, whims)
    metering = Metering(BUCKETS, 4)
    core = EngineCore(settings, [rows], metering, policy)
    up = ev.ReplicaUp(
        0, 1, info.num_kv_blocks,
        num_host_blocks=info.num_host_blocks, block_bytes=info.block_bytes,
    )  # fmt: skip
    requests = [make_request(i, prompt, arena) for i, prompt in enumerate(prompts())]
    core.on_events([up, *(ev.Submit(request) for request in requests)], 1)
    serve(core, executor, depth)
    assert all(request.status is RequestStatus.FINISHED_LENGTH for request in requests)
    return [request.token_ids[request.prompt_len :].tolist() for request in requests], metering


def make_request(
    index: int, prompt: list[int], arena: np.ndarray[tuple[int], np.dtype[np.int32]]
) -> Request:
    """Lay a prompt into the arena."""
    start, length = index * 256, len(prompt) + 24
    arena[start : start + len(prompt)] = prompt
    return Request(
        request_id=index + 1,
        tokenizer=0,
        tenant="a",
        token_ids=arena[start : start + length],
        span_start=start,
        prompt_len=len(prompt),
        max_tokens=24,
        arrival_ns=index + 1,
        sampling=SamplingParams(temperature=1.0, seed=index, ignore_eos=True),
    )


def serve(core: EngineCore, executor: LocalExecutor, depth: int) -> None:
    """Plan up to `depth` steps ahead and compute the oldest, until nothing is left."""
    plans: list[StepPlan] = []
    for now_ns in range(2, 5000):
        while len(plans) < depth and (plan := core.next_plan(0, now_ns)) is not None:
            plans.append(plan)
        core.take_outputs()
        if not plans:
            return
        assert core.on_result(executor.execute(plans.pop(0)), now_ns)
        core.check_integrity()
    raise AssertionError("it does not end")


@pytest.mark.parametrize("depth", [1, 2])
def test_a_real_model_says_the_same_however_often_it_is_preempted(model: Path, depth: int) -> None:
    """In float32 all tokens are those of an engine with room for everybody."""
    expected, undisturbed = run(model, 200, depth, None)
    assert undisturbed.preemptions == 0
    kinds = np.zeros(len(PreemptionKind), np.uint64)
    for whims in range(4):
        tokens, metering = run(model, 24, depth, whims)
        assert tokens == expected, whims
        kinds += metering.preemptions_by.sum(axis=1)
    assert kinds[PreemptionKind.SWAP] > 0
    assert kinds[PreemptionKind.RECOMPUTE] > 0
    assert kinds[PreemptionKind.PARTIAL] > 0 or depth == 2
