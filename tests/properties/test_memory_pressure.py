"""Headrace with less memory than its requests turn out to need: P6 and P12.

How: outputs are short for a while, so that admission comes to expect short ones; then come requests
that are longer than anything seen, and the pool runs out under those that run. Whatever gives
memory back, every request gets the tokens it would get alone, no two preempt each other in turn,
and the caps of preemption hold. A failure names its seed.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.policy.base import Preemption, ReplicaLoad
from core.policy.headrace import HeadracePolicy
from core.policy.kv_memory.output_history import MIN_SAMPLES
from core.policy.kv_memory.preemption import RANKS
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler.settings import EngineSettings
from core.tenancy.classes import ClassesConfig, TrafficClass
from tests.support.scheduler.checked_engine import SMALL_POOL_LIMITS, CheckedEngine, make_settings
from tests.support.scheduler.engine_history import (
    NUM_TOKENIZERS,
    TENANTS,
    VOCAB_SIZE,
    Arrival,
    EngineHistory,
)

NUM_SEEDS = 20
EVENTS_IN_A_HISTORY = 40
EVENTS = ("submit", "submit", "steps", "steps", "steps", "plan", "answer", "abort", "wait", "stop")
DEFAULTS = ClassesConfig()


class ObservedHeadrace(HeadracePolicy):
    """Headrace that looks at every victim it names."""

    def __init__(self, engine: EngineSettings) -> None:
        super().__init__(
            PolicySettings(
                max_num_partial_prefills=engine.max_num_partial_prefills,
                kv_headroom_fraction=engine.kv_headroom_fraction,
                max_num_seqs=engine.max_num_seqs,
                max_num_batched_tokens=engine.max_num_batched_tokens,
                max_model_len=engine.max_model_len,
                max_preemptions=engine.max_preemptions,
                block_size=engine.block_size,
                tuning=engine.tuning,
                limits=engine.limits,
            )
        )
        self.num_victims = 0

    def victim(
        self, candidates: Sequence[Request], beneficiary: Request, load: ReplicaLoad
    ) -> Preemption | None:
        """Return a victim that is strictly lower, or the beneficiary if nobody is."""
        chosen = super().victim(candidates, beneficiary, load)
        if chosen is not None:
            self.num_victims += 1
            assert chosen.request in candidates
            if chosen.request is beneficiary:
                assert all(self._stands(r) >= self._stands(beneficiary) for r in candidates)
            else:
                assert self._stands(chosen.request) < self._stands(beneficiary)
        return chosen

    def _stands(self, request: Request) -> tuple[int, int, int]:
        rank = RANKS[request.traffic_class]
        return rank, -self._shares.over_share(request.flow), -request.order


class PressedHistory(EngineHistory):
    """A history whose engine expects shorter outputs than will come."""

    def __init__(
        self, overrides: dict[str, object], num_blocks: int, num_replicas: int, num_host_blocks: int
    ) -> None:
        engine_settings = make_settings(
            max_model_len=64, policy="headrace", limits=SMALL_POOL_LIMITS, **overrides
        )
        self.policy = ObservedHeadrace(engine_settings)
        self.engine = CheckedEngine(
            engine_settings,
            policy=self.policy,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            num_replicas=num_replicas,
            num_tokenizers=NUM_TOKENIZERS,
            vocab_size=VOCAB_SIZE,
        )
        self.alone = {}
        self.stopped_at = {}
        for replica in range(num_replicas):
            self.engine.start(replica)
        self._mislead()

    def _mislead(self) -> None:
        """Let every flow have so many short outputs that they count as its history."""
        for tenant in TENANTS:
            for traffic_class in TrafficClass:
                for _ in range(MIN_SAMPLES):
                    self.submit(arrival([10, 11], 1, tenant, traffic_class))
        self.engine.run(5000)


def arrival(
    prompt: list[int], max_tokens: int, tenant: str, traffic_class: TrafficClass
) -> Arrival:
    return Arrival(
        prompt=prompt,
        max_tokens=max_tokens,
        tenant=tenant,
        tokenizer=0,
        priority=0,
        traffic_class=traffic_class,
        sampling=SamplingParams(ignore_eos=True),
        patience_s=0,
    )


def run_seed(seed: int) -> PressedHistory:
    """Run the whole history of `seed`."""
    random = Random(seed)
    overrides: dict[str, object] = {
        "pipeline_depth": random.choice([1, 2]),
        "max_num_seqs": random.randint(4, 8),
        "max_num_batched_tokens": random.randint(8, 24),
        "max_preemptions": random.randint(0, 3),
        "kv_headroom_fraction": random.choice([0.0, 0.02]),
        "prefix_cache": random.random() < 0.5,
    }
    history = PressedHistory(
        overrides, random.randint(13, 20), random.randint(1, 2), random.choice([0, 6, 30])
    )
    for _ in range(EVENTS_IN_A_HISTORY):
        name = random.choice(EVENTS)
        if name == "submit":
            for _ in range(random.randint(1, 6)):
                history.submit(random_arrival(random))
        else:
            getattr(history, name)(random.randrange(1000))
        history.check()
    history.end()
    return history


@cache
def finished(seed: int) -> PressedHistory:
    """Return a history after its end; nobody changes it any more."""
    return run_seed(seed)


def random_arrival(random: Random) -> Arrival:
    """Return a request with a short prompt that has much to say."""
    prompt = [random.randrange(8, VOCAB_SIZE) for _ in range(random.randint(1, 8))]
    traffic_class = random.choice(list(TrafficClass))
    return arrival(prompt, random.randint(20, 40), random.choice(TENANTS), traffic_class)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_who_gives_memory_back_loses_nothing_else(seed: int) -> None:
    """Outputs are those of a run alone, blocks are conserved, and no request is preempted more
    often than it may be.
    """
    history = finished(seed)
    most = history.engine.settings.max_preemptions
    assert all(request.num_preemptions <= most for request in history.alone)


def test_the_seeds_come_under_pressure() -> None:
    """Pressure that never came was not tested."""
    assert sum(finished(seed).policy.num_victims for seed in range(5)) >= 20


@settings(max_examples=40)
@given(
    prompts=st.lists(st.integers(4, 16), min_size=2, max_size=8),
    depth=st.sampled_from([1, 2]),
    num_steps=st.integers(0, 12),
)
def test_demand_within_a_reserve_waits_for_one_step(
    prompts: list[int], depth: int, num_steps: int
) -> None:
    """With the pool full of batch work, an interactive request within the reserve of its class
    starts in the next step, or in the one after it when plans in flight still name the blocks: P6.
    """
    classes = replace(
        SMALL_POOL_LIMITS.classes,
        interactive=replace(DEFAULTS.interactive, reserved_kv_fraction=0.4),
    )
    engine = CheckedEngine(
        make_settings(
            max_model_len=64, policy="headrace", limits=Limits(classes), pipeline_depth=depth
        ),
        num_blocks=20,
    )
    engine.start(0)
    endless = SamplingParams(ignore_eos=True)
    for number, prompt_len in enumerate(prompts):
        engine.submit(
            engine.make_request(
                number + 1, list(range(10, 10 + prompt_len)), 40,
                traffic_class=TrafficClass.BATCH, sampling=endless,
            )
        )  # fmt: skip
    for _ in range(num_steps):
        engine.step()
    urgent = engine.make_request(
        99, [50, 51, 52, 53], 4, traffic_class=TrafficClass.INTERACTIVE, sampling=endless
    )
    engine.submit(urgent)
    for _ in range(depth + 1):
        engine.step()
    assert urgent.first_start_ns > 0, (prompts, depth, num_steps)


@pytest.mark.parametrize("num_host_blocks", [0, 40])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_pool_for_one_serves_many(depth: int, num_host_blocks: int) -> None:
    """Requests that each may fill the pool all end, one after the other if need be: R17."""
    history = PressedHistory({"pipeline_depth": depth}, 13, 1, num_host_blocks)
    for number in range(12):
        traffic_class = list(TrafficClass)[number % 3]
        history.submit(arrival([20 + number] * 16, 32, TENANTS[number % 2], traffic_class))
    history.end()
    ended = [r.status for r in history.alone if r.max_tokens == 32]
    assert ended == [RequestStatus.FINISHED_LENGTH] * 12


@pytest.mark.parametrize("seed", range(6))
def test_a_request_that_needs_much_memory_is_not_passed_by_for_ever(seed: int) -> None:
    """Small requests of another tenant come without end; one that does not fit has a claim on what
    becomes free and starts when those that run have ended: P5, P14.
    """
    random = Random(seed)
    engine = CheckedEngine(
        make_settings(
            max_model_len=64, policy="headrace", limits=SMALL_POOL_LIMITS,
            pipeline_depth=random.choice([1, 2]), prefix_cache=False, max_num_seqs=8,
        ),
        num_blocks=16,
    )  # fmt: skip
    engine.start(0)
    numbers = iter(range(1, 10_000))
    small = list[Request]()

    def keep_busy() -> None:
        while sum(r.first_start_ns == 0 for r in small) < 4:
            prompt = [random.randrange(10, VOCAB_SIZE) for _ in range(random.randint(4, 8))]
            request = engine.make_request(next(numbers), prompt, random.randint(8, 16), tenant="b")
            small.append(engine.submit(request))

    for _ in range(20):
        keep_busy()
        engine.step()
    large = engine.submit(engine.make_request(next(numbers), [9] * 40, 4))
    for _ in range(60):
        keep_busy()
        engine.step()
    assert large.first_start_ns > 0, seed
    assert sum(r.status.is_finished for r in small) > 10, seed
