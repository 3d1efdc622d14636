"""What every executor promises: one suite for the local and the simulated one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from core.errors import ConfigError, ModelError, StartError
from core.executor.factory import make_executor
from core.executor.protocol import Executor, ExecutorSettings
from core.executor.simulated import SimulatedExecutor
from core.scheduler.plan import CopyDirection, RecordArray, ResultError, StepPlan, row_dtype
from tests.support.executor.plan_driver import ManualClock, PlanDriver
from tests.support.kernels.native_kernels import kernel_cache
from tests.support.models.tiny_model import IM_END_ID, write_tiny_model

KINDS = ("local", "simulated")
MakeDriver = Callable[..., PlanDriver]


def settings_for(directory: Path, **changes: object) -> ExecutorSettings:
    """Settings of a small executor."""
    values: dict[str, object] = {
        "model_directory": directory,
        "cache_directory": kernel_cache(),
        "dtype": "float32",
        "threads": 1,
        "block_size": 8,
        "num_kv_blocks": 64,
        **changes,
    }
    return ExecutorSettings(**values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=KINDS)
def driver(request: pytest.FixtureRequest, directory: Path) -> PlanDriver:
    """A driver of each kind of executor."""
    return make_driver(str(request.param), settings_for(directory))


def make_driver(kind: str, settings: ExecutorSettings, seed: int = 0) -> PlanDriver:
    """A driver whose executor waits on the driver's clock."""

    def executor(rows: RecordArray, spans: object, clock: object) -> Executor:
        assert isinstance(clock, ManualClock)
        arenas: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = list(spans)  # type: ignore[call-overload]
        return make_executor(kind, settings, rows, arenas, clock, clock.sleep_ns)

    return PlanDriver(executor, block_size=settings.block_size, seed=seed)


def test_info_states_the_pool_and_the_context(driver: PlanDriver) -> None:
    """The pool is as configured, and the context is the lesser of setting and model."""
    info = driver.info
    assert (info.num_kv_blocks, info.block_size, info.vocab_size) == (64, 8, 300)
    assert info.max_model_len in (512, 8192)
    assert info.kernel_path in ("cpp", "simulated")


def test_output_does_not_depend_on_company_or_chunks(
    request: pytest.FixtureRequest, directory: Path
) -> None:
    """A seeded stream is the same alone and beside others, in one chunk and in many."""
    for kind in KINDS:
        outputs = set()
        for seed in range(2):
            driver = make_driver(kind, settings_for(directory), seed)
            watched = driver.add(range(10, 30), 6, temperature=1.0, seed=3)
            others = [driver.add(range(40 + i, 50), 6) for i in range(3 * seed)]
            driver.finish([watched, *others], chunk_max=50 if seed else 4)
            outputs.add(tuple(watched.outputs))
        assert len(outputs) == 1, kind


def test_seed_and_choice_change_the_stream(driver: PlanDriver) -> None:
    """Another seed or another choice of the same prompt is another stream."""
    keys = [(1, 0), (2, 0), (1, 1)]
    running = [
        driver.add([5, 6, 7], 8, temperature=1.5, seed=seed, choice=choice) for seed, choice in keys
    ]
    driver.finish(running)
    assert len({tuple(sequence.outputs) for sequence in running}) == 3


def test_logprobs_have_the_wanted_number_of_alternatives(driver: PlanDriver) -> None:
    """Each sampled token carries its own logprob and as many best ones as the row asks for."""
    sequence = driver.add([5, 6, 7], 1, num_logprobs=4)
    plain = driver.add([5, 6, 7], 1)
    result = driver.step({sequence: 3, plain: 3})
    assert result.rows["num_logprobs"].tolist() == [4, 0]
    assert np.isnan(result.rows["logprob"]).tolist() == [False, True]
    assert len(result.logprobs) == 4


def test_prompt_logprobs_cover_every_new_position(driver: PlanDriver) -> None:
    """(1 + k) entries a position, the prompt's own token first, none known for the first."""
    sequence = driver.add([5, 6, 7, 8, 9], 1, num_prompt_logprobs=1)
    driver.step({sequence: 2})
    driver.step({sequence: 3})
    assert [token for token, _ in sequence.prompt_entries[::2]] == [5, 6, 7, 8, 9]
    unknown = [np.isnan(logprob) for _, logprob in sequence.prompt_entries]
    assert unknown == [True, True] + [False] * 8


def test_bad_rows_have_errors(driver: PlanDriver) -> None:
    """A stale row and a token outside the vocabulary are answered, and counted."""
    stale, bad, good = (driver.add([5, 6], 1) for _ in range(3))
    driver.rows["generation"][stale.row] += 1
    driver.arena[bad.span_start] = 300
    result = driver.executor.execute(driver.plan(dict.fromkeys((stale, bad, good), 2)))
    expected = [ResultError.STALE_ROW, ResultError.BAD_TOKEN, ResultError.NONE]
    assert result.rows["error"].tolist() == expected
    statistics = driver.executor.statistics()
    assert (statistics.steps, statistics.row_errors, statistics.sampled_tokens) == (1, 2, 1)


def test_results_carry_the_names_of_their_plan(driver: PlanDriver) -> None:
    """Replica, both epochs and step number come back unchanged."""
    sequence = driver.add([5, 6], 1)
    rows = driver.plan({sequence: 2}).rows
    result = driver.executor.execute(StepPlan(3, 7, 99, rows, scheduler_epoch=5))
    named = (result.replica, result.epoch, result.step, result.scheduler_epoch)
    assert named == (3, 7, 99, 5)
    assert result.finished_ns >= result.started_ns > 0


def test_an_empty_plan_is_answered(driver: PlanDriver) -> None:
    """A step without rows has an empty result."""
    result = driver.executor.execute(driver.plan({}))
    assert len(result.rows) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_swapped_sequence_goes_on_as_if_nothing_had_happened(kind: str, directory: Path) -> None:
    """Blocks that were copied out, written by others, and copied back elsewhere are the same."""
    settings = settings_for(directory, swap_memory_bytes=2**20)
    alone, driver = make_driver(kind, settings), make_driver(kind, settings)
    assert driver.info.num_host_blocks >= 4
    expected = alone.add(range(10, 30), 12)
    alone.finish([expected])
    sequence = driver.add(range(10, 30), 12)
    driver.step({sequence: 20})
    driver.step({sequence: 1})
    old, new = sequence.blocks[:3], [driver.free_blocks.pop() for _ in range(3)]
    driver.copy(*((CopyDirection.OUT, block, i) for i, block in enumerate(old)))
    for block in old:
        driver.free_blocks.append(block)
    driver.finish([driver.add(range(50, 70), 4)])
    driver.copy(*((CopyDirection.IN, block, i) for i, block in enumerate(new)))
    sequence.blocks[:3] = new
    driver.rows["block_table"][sequence.row][:3] = new
    driver.finish([sequence])
    assert sequence.outputs == expected.outputs


def test_a_copy_outside_its_memory_is_refused(directory: Path) -> None:
    """Blocks beyond either pool are an IndexError before anything is written."""
    driver = make_driver("local", settings_for(directory, swap_memory_bytes=2**20))
    for block, host_block in ((64, 0), (-1, 0), (0, driver.info.num_host_blocks), (0, -1)):
        for direction in CopyDirection:
            with pytest.raises(IndexError, match="outside"):
                driver.copy((direction, block, host_block))


def test_without_host_memory_nothing_can_be_copied(driver: PlanDriver) -> None:
    """An executor without memory for swapped blocks says so, and has none."""
    assert driver.info.num_host_blocks == 0
    assert driver.info.block_bytes > 0


def test_forgotten_rows_have_nothing_to_feed_back(driver: PlanDriver) -> None:
    """After another scheduler took over, FEEDBACK of an old row is stale."""
    sequence = driver.add([5, 6], 3)
    driver.step({sequence: 2})
    driver.executor.forget_rows()
    result = driver.executor.execute(driver.plan({sequence: 1}, feedback=True))
    assert result.rows["error"].tolist() == [ResultError.STALE_ROW]


def test_a_simulated_step_takes_its_modelled_time(directory: Path) -> None:
    """The clock moves by the step's time plus the tokens' time, and by nothing else."""
    settings = settings_for(directory, simulated_step_us=500, simulated_token_us=2.5)
    driver = make_driver("simulated", settings)
    running = [driver.add(range(2, 32), 1), driver.add(range(2, 12), 1)]
    result = driver.step({running[0]: 30, running[1]: 10})
    assert result.finished_ns - result.started_ns == 500_000 + 40 * 2500


def test_a_simulated_copy_takes_time(directory: Path) -> None:
    """A step that copies takes longer by what the bytes of its blocks take."""
    settings = settings_for(directory, simulated_step_us=500, swap_memory_bytes=2**20)
    driver = make_driver("simulated", settings)
    before_ns = driver.clock.now_ns()
    driver.copy((CopyDirection.OUT, 3, 0), (CopyDirection.OUT, 4, 1))
    copied_us = 2 * driver.info.block_bytes / 5000
    assert driver.clock.now_ns() - before_ns == 500_000 + round(1000 * copied_us)


def simulated(eos_probability: float) -> PlanDriver:
    """A simulated executor that ends sequences with the given probability a token."""

    def executor(rows: RecordArray, spans: object, clock: object) -> SimulatedExecutor:
        assert isinstance(clock, ManualClock)
        return SimulatedExecutor(
            ExecutorSettings(
                model_directory=Path("none"), cache_directory=Path("none"), block_size=8
            ),
            rows,
            list(spans),  # type: ignore[call-overload]
            clock,
            clock.sleep_ns,
            vocab_size=20,
            eos_token_ids=(IM_END_ID,),
            eos_probability=eos_probability,
        )

    return PlanDriver(executor, block_size=8)


@pytest.mark.parametrize(("probability", "low", "high"), [(0.0, 0, 0), (0.5, 20, 80)])
def test_simulated_ends_appear_as_configured(probability: float, low: int, high: int) -> None:
    """By default no end token is drawn; with a probability about that share is."""
    driver = simulated(probability)
    sequence = driver.add([3, 4, 5], 100)
    driver.finish([sequence])
    assert low <= sequence.outputs.count(IM_END_ID) <= high
    assert len(set(sequence.outputs)) > 5


def test_the_pool_is_sized_from_free_memory(directory: Path) -> None:
    """Without a number the local executor takes what the limit allows and prints how."""
    settings = settings_for(directory, num_kv_blocks=0, kv_memory_limit_bytes=2**21)
    info = make_driver("local", settings).info
    assert 0 < info.kv_bytes <= 2**21
    assert info.memory_table[-1] == ("KV pool", info.kv_bytes)


def test_a_pool_that_cannot_be_is_refused(directory: Path) -> None:
    """More blocks than the memory holds is a StartError, before anything is allocated."""
    with pytest.raises(StartError, match="num_kv_blocks"):
        make_driver("local", settings_for(directory, num_kv_blocks=2**24 * 64))


def make(kind: str, directory: Path) -> Executor:
    """An executor that is not loaded."""
    rows = np.zeros(1, dtype=row_dtype(1))
    clock = ManualClock()
    return make_executor(kind, settings_for(directory), rows, [], clock, clock.sleep_ns)


def test_an_unknown_kind_is_refused(directory: Path) -> None:
    """The error names the kinds there are."""
    with pytest.raises(ConfigError, match="local or simulated"):
        make("quantum", directory)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    """Loading a directory that is no model is a ModelError."""
    with pytest.raises(ModelError, match=r"config\.json"):
        make("local", tmp_path).load()
