"""A simulation takes exactly the time that its machine says, loses nobody, and repeats itself."""

import numpy as np
import pytest

from core.errors import RejectionReason
from core.policy.base import Relief
from core.request import RequestStatus
from core.simulation.history import History
from core.simulation.metrics import request_times
from core.simulation.noise import NO_NOISE, Noise, NoiseSettings
from core.simulation.policies import BASELINES, prepare
from core.simulation.run import Simulation, SimulationSettings
from core.simulation.workload import START_NS, Workload
from tests.support.loads.workloads import (
    NS_PER_MS,
    make_workload,
    random_workload,
    simulated_settings,
)
from tests.support.scheduler.preempting_policies import ScriptedPolicy

SERVED = RequestStatus.FINISHED_STOPPED


def simulate(
    workload: Workload, policy: str = "sarathi", settings: SimulationSettings | None = None
) -> History:
    """Run `policy` to the end."""
    chosen, decider = prepare(policy, settings or simulated_settings())
    return Simulation(chosen, workload, decider).run()


def milliseconds(times_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[float]:
    """Return times since the start of the simulation, ms."""
    return [float(each) for each in (times_ns - START_NS) / NS_PER_MS]


def test_one_request_takes_the_time_of_its_steps() -> None:
    """100 prompt tokens take 10 + 10 ms, each further token 10 + 1 ms."""
    history = simulate(make_workload([(5.0, 100, 3)]))
    assert milliseconds(history.token_ns) == [25.0, 36.0, 47.0]
    assert milliseconds(history.step_begin_ns) == [5.0, 25.0, 36.0]
    assert history.status.tolist() == [SERVED]


def test_a_long_prompt_is_computed_in_chunks() -> None:
    """300 tokens in a budget of 256: 35.6 ms and 14.4 ms, then the first token is there."""
    history = simulate(make_workload([(0.0, 300, 1)]))
    assert milliseconds(history.step_end_ns) == [35.6, 50.0]
    assert milliseconds(history.token_ns) == [50.0]


def test_an_arrival_during_a_step_joins_the_next() -> None:
    """Its prompt shares the step with the other's decode: 10 + 1 + 5 ms."""
    history = simulate(make_workload([(0.0, 100, 2), (8.0, 50, 1)]))
    assert milliseconds(history.step_end_ns) == [20.0, 36.0]
    assert history.token_request.tolist() == [0, 0, 1]
    assert milliseconds(history.first_start_ns) == [0.0, 20.0]


def test_a_request_ends_where_the_trace_says_not_where_it_asked() -> None:
    """The scheduler is told `max_tokens` only; the end comes with the token."""
    settings = simulated_settings(max_tokens=50)
    history = simulate(make_workload([(0.0, 10, 3), (0.0, 10, 60)]), settings=settings)
    assert np.bincount(history.token_request).tolist() == [3, 60]
    assert history.status.tolist() == [SERVED, SERVED]


def test_what_can_never_fit_is_refused() -> None:
    """The reason is the engine's own."""
    history = simulate(make_workload([(0.0, 5000, 1), (0.0, 10, 1)]))
    assert history.status.tolist() == [RequestStatus.FINISHED_SHED, SERVED]
    assert history.reason[0] == RejectionReason.CONTEXT_LENGTH_EXCEEDED


def test_a_queue_deadline_passes_while_nothing_else_happens() -> None:
    """The timer of the core is an event like any other."""
    settings = simulated_settings(queue_deadline_ns=20 * NS_PER_MS, max_num_seqs=1)
    history = simulate(make_workload([(0.0, 10, 5), (1.0, 10, 1)]), settings=settings)
    assert history.status[1] == RequestStatus.FINISHED_EXPIRED
    assert milliseconds(history.finished_ns)[1] == 21.0


def test_two_machines_share_the_load() -> None:
    """Both of two prompts that come together are computed at once."""
    settings = simulated_settings()
    two = SimulationSettings(
        engine=settings.engine, hardware=settings.hardware, num_blocks=100, num_replicas=2
    )
    history = simulate(make_workload([(0.0, 200, 1), (0.0, 200, 1)]), settings=two)
    assert milliseconds(history.token_ns) == [30.0, 30.0]


def test_equal_prefixes_are_found_in_the_cache() -> None:
    """The second request computes only what lies behind the hashed blocks they share."""
    workload = make_workload([(0.0, 600, 1), (1000.0, 600, 1)], hash_ids=((1, 2), (1, 3)))
    history = simulate(workload, settings=simulated_settings(prefix_cache=True))
    assert history.cached_tokens == 512
    assert history.computed_tokens == 600 + 88


@pytest.mark.parametrize("policy", BASELINES)
@pytest.mark.parametrize("num_blocks", [6250, 40])
def test_nobody_and_no_token_is_lost(policy: str, num_blocks: int) -> None:
    """Every request ends once; who was served has all tokens; all work is accounted for."""
    workload = random_workload(60, seed=3)
    settings, decider = prepare(policy, simulated_settings(num_blocks=num_blocks))
    simulation = Simulation(settings, workload, decider)
    history = simulation.run()
    simulation.core.check_integrity()
    assert simulation.core.num_requests == 0
    served = history.status == SERVED
    assert np.all(served | (history.status == RequestStatus.FINISHED_SHED))
    tokens = np.bincount(history.token_request, minlength=60)
    assert tokens[served].tolist() == workload.output_tokens[served].tolist()
    assert tokens[~served].sum() == 0
    needed = (workload.prompt_tokens + workload.output_tokens - 1)[served].sum()
    assert history.computed_tokens == needed + history.recomputed_tokens
    if policy not in ("gap-edf", "headrace"):  # these refuse what would be late
        assert served.all()


def test_the_same_seed_gives_the_same_run() -> None:
    """To the nanosecond, with noise and outliers; another seed gives another."""
    workload = random_workload(40, seed=5)

    def token_times(seed: int) -> list[int]:
        base = simulated_settings()
        noisy = SimulationSettings(
            engine=base.engine, hardware=base.hardware, num_blocks=base.num_blocks,
            noise=NoiseSettings(0.05, outliers=True), seed=seed,
        )  # fmt: skip
        times: list[int] = simulate(workload, settings=noisy).token_ns.tolist()
        return times

    assert token_times(1) == token_times(1)
    assert token_times(1) != token_times(2)


def test_noise_scatters_around_the_model() -> None:
    """Mean 1, the given deviation, and one step in 200 three times as long."""
    plain, odd = Noise(NoiseSettings(0.05), 1), Noise(NoiseSettings(0.0, outliers=True), 1)
    factors = np.array([plain.apply(10**9) for _ in range(20_000)]) / 1e9
    assert factors.mean() == pytest.approx(1.0, abs=0.002)
    assert factors.std() == pytest.approx(0.05, rel=0.05)
    outliers = [odd.apply(1000) for _ in range(20_000)]
    assert set(outliers) == {1000, 3000}
    assert outliers.count(3000) == pytest.approx(100, abs=35)
    assert Noise(NO_NOISE, 1).apply(123) == 123


def test_progress_and_samples_cover_the_whole_run() -> None:
    """The last word of progress is that all have arrived; samples are the engine's own counts."""
    settings, decider = prepare("sarathi", simulated_settings())
    workload = make_workload([(0.0, 100, 40), (1.0, 100, 40)])
    told: list[tuple[int, int]] = []
    history = Simulation(settings, workload, decider).run(lambda *counts: told.append(counts))
    assert told[-1] == (2, 2)
    samples = history.samples
    assert samples.time_ns == sorted(samples.time_ns)
    assert max(samples.num_running) == 2
    assert max(samples.kv_use) > 0
    assert request_times(history).kept.all()


def test_a_swap_takes_the_time_of_its_copies() -> None:
    """Two prompts outgrow a pool of 14 blocks: one waits in host memory, and computes nothing
    twice; 16 tokens copied one way take 0.16 ms.
    """
    workload = make_workload([(0.0, 96, 40), (1.0, 96, 40)])
    ends = {}
    for swap_memory_bytes in (0, 2**30):
        settings = simulated_settings(num_blocks=14, swap_memory_bytes=swap_memory_bytes)
        policy = ScriptedPolicy(settings.engine)
        policy.relief = Relief.SWAP
        simulation = Simulation(settings, workload, policy)
        history = simulation.run()
        assert history.status.tolist() == [RequestStatus.FINISHED_STOPPED] * 2
        ends[swap_memory_bytes] = milliseconds(history.step_end_ns), simulation.core.metering
    (recomputed_ends, recomputed), (swapped_ends, swapped) = ends.values()
    assert recomputed.swapped_out_tokens == swapped.recomputed_tokens == 0
    assert recomputed.recomputed_tokens == swapped.swapped_out_tokens > 96
    assert swapped.swapped_in_tokens == swapped.swapped_out_tokens
    saved_ms = recomputed_ends[-1] - swapped_ends[-1]
    num_copies = 2 * -(-swapped.swapped_out_tokens // 16)
    computed_ms = 0.1 * (recomputed.recomputed_tokens + 1)
    assert saved_ms == pytest.approx(computed_ms - 0.16 * num_copies - 1.0, abs=0.2)
