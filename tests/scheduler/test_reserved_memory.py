"""Memory that a class has reserved, or others were lent: whoever may claim it waits a step."""

import pytest

from core.policy.kv_memory.output_history import MIN_SAMPLES
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from tests.support.scheduler.checked_engine import CheckedEngine, make_settings

NUM_BLOCKS = 56  # of four tokens
INTERACTIVE, STANDARD, BATCH = TrafficClass.INTERACTIVE, TrafficClass.STANDARD, TrafficClass.BATCH
CLASSES = ClassesConfig(
    interactive=ClassConfig(ttft_ms=2000, reserved_kv_fraction=0.2),
    batch=ClassConfig(preemptible=True),
    administrative=ClassConfig(),
)


class Pool:
    """An engine of one small pool, on which any number may run."""

    def __init__(self, **overrides: object) -> None:
        settings = make_settings(
            policy="headrace",
            limits=Limits(CLASSES),
            prefix_cache=False,
            max_num_seqs=32,
            max_num_batched_tokens=256,
            **overrides,
        )
        self.engine = CheckedEngine(settings, num_blocks=NUM_BLOCKS)
        self.engine.start()
        self._num_requests = 0

    def submit(self, prompt_len: int, max_tokens: int, traffic_class: TrafficClass) -> Request:
        """Let a request arrive that uses all its tokens."""
        self._num_requests += 1
        request = self.engine.make_request(
            self._num_requests,
            [10 + self._num_requests] * prompt_len,
            max_tokens,
            traffic_class=traffic_class,
            sampling=SamplingParams(ignore_eos=True),
        )
        return self.engine.submit(request)

    def run_until(self, *requests: Request) -> None:
        """Step until all these run."""
        for _ in range(100):
            if all(request.status is RequestStatus.RUNNING for request in requests):
                return
            self.engine.step()
        raise AssertionError(f"still waiting: {[r for r in requests if r.row < 0]}")


def test_who_finds_free_blocks_beside_batch_starts_at_once() -> None:
    """An interactive request does not wait for what batch work may come to hold: with most of the
    pool free it starts in the next step, though it is larger than the reserve of its class.
    """
    pool = Pool()
    batch = [pool.submit(40, 180, BATCH) for _ in range(2)]
    pool.run_until(batch[0])
    urgent = pool.submit(80, 90, INTERACTIVE)
    pool.engine.step()
    assert urgent.status is RequestStatus.RUNNING
    pool.engine.run()
    assert {r.status for r in (*batch, urgent)} == {RequestStatus.FINISHED_LENGTH}


def test_a_reserve_that_was_lent_is_back_within_a_step() -> None:
    """With the pool full of standard work, lent while nobody interactive came, an interactive
    request within the reserve starts in the next step.
    """
    pool = Pool()
    standard = [pool.submit(26, 3, STANDARD) for _ in range(7)]
    pool.run_until(*standard)
    held = sum(len(request.block_ids) for request in standard)
    assert held > 0.8 * NUM_BLOCKS, "nothing was lent"
    urgent = pool.submit(36, 8, INTERACTIVE)
    pool.engine.step()
    assert urgent.status is RequestStatus.RUNNING


@pytest.mark.parametrize("num_steps", range(8, 24))
def test_a_reserve_is_back_within_a_step_though_all_that_run_need_blocks(num_steps: int) -> None:
    """Batch outputs that are longer than any before fill the pool and take blocks from each other;
    an interactive request within its reserve does not wait until they have done.
    """
    pool = Pool()
    for _ in range(MIN_SAMPLES):
        pool.submit(4, 1, BATCH)
    pool.engine.run()
    batch = [pool.submit(14 + number % 4, 60, BATCH) for number in range(14)]
    for _ in range(num_steps):
        pool.engine.step()
    assert sum(len(request.block_ids) for request in batch) > 0.8 * NUM_BLOCKS
    urgent = pool.submit(20, 8, INTERACTIVE)
    pool.engine.step()
    assert urgent.status is RequestStatus.RUNNING


def test_in_a_pool_for_one_request_everybody_ends() -> None:
    """Requests that fill the whole pool, of all classes at once, end one after the other."""
    pool = Pool()
    requests = [
        pool.submit(100, 4 * NUM_BLOCKS - 100, traffic_class)
        for traffic_class in (BATCH, INTERACTIVE, STANDARD, BATCH, INTERACTIVE, STANDARD)
    ]
    pool.engine.run(20_000)
    assert {request.status for request in requests} == {RequestStatus.FINISHED_LENGTH}


def test_who_needs_the_pool_for_itself_is_not_kept_out_by_endless_batch_work() -> None:
    """A request for which nothing may be kept beside it starts, though batch work that can be
    dropped for it always runs.
    """
    pool = Pool(kv_headroom_fraction=0.05)
    pool.run_until(pool.submit(8, 20, BATCH))
    large = pool.submit(4 * NUM_BLOCKS - 12, 8, STANDARD)
    for _ in range(200):
        pool.submit(8, 20, BATCH)
        pool.engine.step()
        if large.status is not RequestStatus.WAITING:
            return
    raise AssertionError("it never started")


def test_under_pressure_little_is_computed_again() -> None:
    """Long batch outputs in a pool for a few of them, with interactive requests coming and going:
    at most a twentieth of all tokens is computed again, and everybody ends.
    """
    pool = Pool()
    requests = [pool.submit(16, 100, BATCH) for _ in range(30)]
    for number in range(400):
        pool.engine.step()
        if number % 10 == 0:
            requests.append(pool.submit(12, 8, INTERACTIVE))
    pool.engine.run(20_000)
    assert {request.status for request in requests} == {RequestStatus.FINISHED_LENGTH}
    metering = pool.engine.metering
    assert metering.recomputed_tokens <= 0.05 * (30 * 116 + 40 * 20)
