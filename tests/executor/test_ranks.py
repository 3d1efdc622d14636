"""A replica of several ranks answers as one executor does: the same tokens, on every rank."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from core.clock import Clock
from core.errors import ModelError, RanksError
from core.executor.local import LocalExecutor
from core.executor.protocol import Executor, ExecutorSettings
from core.parallel.ranks import ALONE, agree, sum_of
from core.parallel.socket_ranks import SocketRanks, connect
from core.scheduler.plan import CopyDirection, RecordArray
from tests.support.executor.plan_driver import ManualClock, PlanDriver, Running
from tests.support.executor.rank_group import RankGroup, on_all
from tests.support.kernels.native_kernels import kernel_cache
from tests.support.models.tiny_model import write_tiny_model

CLOSE = 1e-4
Spans = Sequence[np.ndarray[tuple[int], np.dtype[np.int32]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose three KV heads do not go round among two ranks."""
    return write_tiny_model(tmp_path_factory.mktemp("model"), heads=6, kv_heads=3, vocab_size=301)


def settings_for(model: Path, **changes: object) -> ExecutorSettings:
    """Settings of a small executor."""
    values: dict[str, object] = {
        "model_directory": model,
        "cache_directory": kernel_cache(),
        "dtype": "float32",
        "threads": 1,
        "block_size": 8,
        "num_kv_blocks": 64,
        **changes,
    }
    return ExecutorSettings(**values)  # type: ignore[arg-type]


def group_of(settings: ExecutorSettings, size: int, meeting_place: Path) -> PlanDriver:
    """A driver of `size` ranks that compute together; one needs nobody."""

    def make(rows: RecordArray, spans: Spans, clock: Clock) -> Executor:
        return RankGroup(
            [
                LocalExecutor(
                    replace(settings, tensor_parallel=size, rank=rank, meeting_place=meeting_place),
                    rows,
                    spans,
                    clock,
                )
                for rank in range(size)
            ]
        )

    return PlanDriver(make, block_size=settings.block_size)


def some_work(driver: PlanDriver, chunk_max: int) -> list[Running]:
    """Greedy, seeded and penalized sequences with log-probabilities, run to their ends."""
    sequences = [
        driver.add(range(10, 40), 8, num_logprobs=3),
        driver.add(range(40, 47), 8, temperature=1.0, seed=3, top_k=20, num_logprobs=0),
        driver.add(range(50, 70), 6, repetition_penalty=1.3, num_logprobs=2),
        driver.add(range(70, 95), 2, num_prompt_logprobs=2, num_logprobs=0),
    ]
    driver.finish(sequences, chunk_max=chunk_max)
    return sequences


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_draw_the_tokens_of_one_executor(model: Path, tmp_path: Path, size: int) -> None:
    """In float32 all tokens are equal and log-probabilities are as close as sums in another order
    can be, though a rank has other numbers of heads than the next.
    """
    settings = settings_for(model)
    alone = some_work(group_of(settings, 1, tmp_path / "alone"), 16)
    divided = some_work(group_of(settings, size, tmp_path / "ranks"), 16)
    assert [each.outputs for each in divided] == [each.outputs for each in alone]
    for ours, theirs in zip(divided, alone, strict=True):
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=CLOSE)
        assert [i for i, _ in ours.prompt_entries] == [i for i, _ in theirs.prompt_entries]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_company_and_chunks_change_no_bit(model: Path, tmp_path: Path, dtype: str) -> None:
    """Sums between ranks have one order: a sequence is the same alone and beside others."""
    seen = set()
    for others, chunk_max in ((0, 64), (3, 5)):
        driver = group_of(settings_for(model, dtype=dtype), 2, tmp_path / f"{others}")
        watched = driver.add(range(10, 33), 8, num_logprobs=0)
        crowd = [driver.add(range(40 + k, 60), 8) for k in range(others)]
        driver.finish([watched, *crowd], chunk_max=chunk_max)
        seen.add((*watched.outputs, *watched.logprobs))
    assert len(seen) == 1


def test_each_rank_holds_the_kv_of_its_heads(model: Path, tmp_path: Path) -> None:
    """Together they hold as many bytes as one executor would, under one number of blocks."""
    alone = group_of(settings_for(model), 1, tmp_path / "alone").info
    driver = group_of(settings_for(model), 2, tmp_path / "ranks")
    assert isinstance(driver.executor, RankGroup)
    infos = driver.executor.infos
    assert {info.num_kv_blocks for info in infos} == {alone.num_kv_blocks}
    assert [info.kv_bytes * 3 for info in infos] == [alone.kv_bytes * 2, alone.kv_bytes]
    assert sum(info.block_bytes for info in infos) == alone.block_bytes


def test_blocks_are_swapped_on_every_rank(model: Path, tmp_path: Path) -> None:
    """A sequence whose blocks went out and came back elsewhere goes on as if nothing had been."""
    settings = settings_for(model, swap_memory_bytes=1 << 22)
    outputs = []
    for is_swapped in (False, True):
        driver = group_of(settings, 2, tmp_path / f"{is_swapped}")
        sequence = driver.add(range(10, 34), 8)
        driver.step({sequence: 24})
        if is_swapped:
            old, new = sequence.blocks[:3], [driver.free_blocks.pop() for _ in range(3)]
            driver.copy(*((CopyDirection.OUT, block, i) for i, block in enumerate(old)))
            driver.copy(*((CopyDirection.IN, block, i) for i, block in enumerate(new)))
            sequence.blocks[:3] = new
            driver.rows["block_table"][sequence.row][:3] = new
        driver.finish([sequence])
        outputs.append(sequence.outputs)
    assert outputs[0] == outputs[1]


def test_more_ranks_than_kv_heads_are_refused(model: Path, tmp_path: Path) -> None:
    """The message names the key and the number of heads."""
    settings = settings_for(model, tensor_parallel=4, meeting_place=tmp_path / "ranks")
    executor = LocalExecutor(settings, np.zeros(0, dtype=np.int32), [], ManualClock())
    with pytest.raises(ModelError, match=r"3 KV heads.*engine.tensor_parallel = 4"):
        executor.load()


def joined(meeting_place: Path, size: int, exchange_s: float = 10.0) -> list[SocketRanks]:
    """A group that has met."""
    ranks = [
        SocketRanks(meeting_place, rank, size, join_s=10.0, exchange_s=exchange_s)
        for rank in range(size)
    ]
    on_all([rank.join for rank in ranks])
    return ranks


def test_every_rank_gets_the_same_sum_and_the_word_of_rank_0(tmp_path: Path) -> None:
    """Parts are added in the order of the ranks; whoever is alone is its own group."""
    ranks = joined(tmp_path / "ranks", 3)
    parts = [torch.tensor([[1e8, 1.0]]), torch.tensor([[1.0, 2.0]]), torch.tensor([[-1e8, 3.0]])]
    expected = parts[0] + parts[1] + parts[2]
    sums = on_all([partial(sum_of, parts[r].clone(), ranks[r]) for r in range(3)])
    assert all(torch.equal(each, expected) for each in sums)
    assert on_all([partial(agree, 7 + r, ranks[r]) for r in range(3)]) == [7, 7, 7]
    assert torch.equal(sum_of(parts[0], ALONE), parts[0])
    assert list(tmp_path.iterdir()) == []


def test_nobody_waits_for_ever_for_a_rank_that_does_not_come(tmp_path: Path) -> None:
    """A group that does not come together is a named error."""
    lonely = SocketRanks(tmp_path / "ranks", 0, 2, join_s=0.1, exchange_s=0.1)
    with pytest.raises(RanksError, match="rank 0 waits for the others"):
        lonely.join()


def test_nobody_waits_for_ever_in_an_exchange(tmp_path: Path) -> None:
    """A rank that falls silent is a named error on the others."""
    ranks = joined(tmp_path / "ranks", 2, exchange_s=0.2)
    with pytest.raises(RanksError, match="rank 1 exchanges with the others"):
        ranks[1].gather(torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_large_parts_travel_both_ways_at_once(tmp_path: Path, dtype: torch.dtype) -> None:
    """Parts that fit no buffer arrive whole, from everybody, however often."""
    ranks = joined(tmp_path / "ranks", 3)
    for shape in ((), (1,), (300, 1111), (3,)):
        parts = [torch.randn(shape).mul(100).to(dtype) for _ in ranks]
        got = on_all([partial(r.gather, part) for r, part in zip(ranks, parts, strict=True)])
        assert all(torch.equal(each, torch.stack(parts)) for each in got)


def test_a_rank_that_is_gone_is_a_named_error_at_once(tmp_path: Path) -> None:
    """Nobody waits until an exchange is late."""
    ranks = joined(tmp_path / "ranks", 2, exchange_s=1000.0)
    ranks[0].close()
    with pytest.raises(RanksError, match=r"rank 1 exchanges with the others: .*"):
        ranks[1].gather(torch.zeros(4))


def test_a_rank_that_leaves_before_it_says_who_it_is_is_a_named_error(tmp_path: Path) -> None:
    """As one that is killed while the others meet."""
    waiting = SocketRanks(tmp_path / "ranks", 0, 2, join_s=10.0, exchange_s=1.0)

    def leave() -> None:
        connect(tmp_path / "ranks.0", time.monotonic() + 10.0).close()

    with pytest.raises(RanksError, match="rank 0 waits for the others: one has gone"):
        on_all([waiting.join, leave])
