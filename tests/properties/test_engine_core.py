"""The engine core under random histories: whatever happens to neighbours, executors and the clock,
every request gets the tokens it would get alone, ends once, and leaves nothing behind.

Two drivers of the same histories: a state machine, which shrinks what it finds to a few steps, and
a swarm of seeds, which gets much further into each history. A failure of the swarm names its seed.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from core.sampling_params import SamplingParams
from core.tenancy.classes import TrafficClass
from tests.support.scheduler.checked_engine import SMALL_POOL_LIMITS
from tests.support.scheduler.engine_history import (
    NUM_TOKENIZERS,
    TENANTS,
    VOCAB_SIZE,
    Arrival,
    EngineHistory,
)

NUM_SEEDS = 100
EVENTS_IN_A_HISTORY = 80
PREFIXES: tuple[list[int], ...] = (list(range(10, 19)), list(range(20, 24)), [])
STOP_TOKEN_IDS: tuple[tuple[int, ...], ...] = ((), (3,), (4, 5))
COMMON = ("abort", "stop", "plan", "answer", "steps", "kill_or_start", "wait", "submit_again")
RARE = (
    "abort_strangers", "repeat_result", "lose_result", "give_up_second", "cancel_tenant",
    "lose_tokenizer", "drain", "drain_replica",
)  # fmt: skip

OVERRIDES = st.fixed_dictionaries(
    {
        "pipeline_depth": st.sampled_from([1, 2]),
        "policy": st.sampled_from(["headrace", "fcfs", "priority", "static"]),
        "limits": st.just(SMALL_POOL_LIMITS),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.integers(6, 24),
        "max_num_partial_prefills": st.integers(1, 3),
        "max_preemptions": st.integers(0, 3),
        "poison_crashes": st.integers(1, 3),
        "kv_headroom_fraction": st.sampled_from([0.0, 0.1, 0.3]),
        "prefix_cache": st.booleans(),
        "max_queued_requests": st.sampled_from([100, 4]),
        "max_queued_tokens": st.sampled_from([10_000, 120]),
    }
)
ARRIVALS = st.builds(
    Arrival,
    prompt=st.builds(
        list[int].__add__,
        st.sampled_from(PREFIXES),
        st.lists(st.integers(8, VOCAB_SIZE - 1), min_size=1, max_size=24),
    ),
    max_tokens=st.integers(0, 20),
    tenant=st.sampled_from(TENANTS),
    tokenizer=st.integers(0, NUM_TOKENIZERS - 1),
    priority=st.integers(-1, 1),
    traffic_class=st.sampled_from(list(TrafficClass)),
    sampling=st.builds(
        SamplingParams,
        seed=st.integers(0, 3),
        ignore_eos=st.booleans(),
        min_tokens=st.integers(0, 3),
        stop_token_ids=st.sampled_from(STOP_TOKEN_IDS),
        num_logprobs=st.sampled_from([-1, 0, 2]),
        num_prompt_logprobs=st.sampled_from([-1, -1, 0, 1]),
    ),
    patience_s=st.sampled_from([0, 0, 0, 1]),
)
WHICH = st.integers(0, 1000)


class EngineCoreMachine(RuleBasedStateMachine):
    """Few rules, so that each is used often."""

    @initialize(
        overrides=OVERRIDES,
        num_blocks=st.integers(8, 24),
        num_replicas=st.integers(1, 2),
        num_host_blocks=st.sampled_from([0, 3, 20]),
        whims=st.none() | st.integers(0, 1000),
    )
    def build(
        self,
        overrides: dict[str, object],
        num_blocks: int,
        num_replicas: int,
        num_host_blocks: int,
        whims: int | None,
    ) -> None:
        self.history = EngineHistory(overrides, num_blocks, num_replicas, num_host_blocks, whims)

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=5))
    def submit(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self.history.submit(arrival)

    @rule(which=WHICH)
    def steps(self, which: int) -> None:
        self.history.steps(which)

    @rule(name=st.sampled_from(COMMON), which=WHICH)
    def something_common(self, name: str, which: int) -> None:
        getattr(self.history, name)(which)

    @rule(name=st.sampled_from(RARE), which=WHICH)
    def something_rare(self, name: str, which: int) -> None:
        getattr(self.history, name)(which)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "history"):
            self.history.check()

    def teardown(self) -> None:
        if hasattr(self, "history"):
            self.history.end()


def test_a_state_machine_finds_no_history_that_harms_a_request() -> None:
    """No history leaves a request with other tokens, a second end, or a block or row behind."""
    run_state_machine_as_test(
        EngineCoreMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_a_seed_finds_no_history_that_harms_a_request(seed: int) -> None:
    """The same for long random histories, each with its own mix of events."""
    run_seed(seed)


def run_seed(seed: int) -> EngineHistory:
    """Run the whole history of `seed`."""
    random = Random(seed)
    history = EngineHistory(
        random_overrides(random),
        random.randint(13, 26),
        random.randint(1, 2),
        random.choice([0, 6, 30]),
        random.choice([None, seed]),
    )
    weights = {"submit": 4.0, "steps": 4.0, "plan": 2.0, "answer": 2.0}
    weights |= {name: random.choice([0.0, 0.5, 1.0]) for name in COMMON[:2] + COMMON[5:]}
    weights |= {name: random.choice([0.0, 0.0, 0.3]) for name in RARE}
    for _ in range(EVENTS_IN_A_HISTORY):
        [name] = random.choices(list(weights), list(weights.values()))
        if name == "submit":
            for _ in range(random.randint(1, 4)):
                history.submit(random_arrival(random))
        else:
            getattr(history, name)(random.randrange(1000))
        history.check()
    history.end()
    return history


def random_overrides(random: Random) -> dict[str, object]:
    """Return settings of an engine."""
    return {
        "pipeline_depth": random.choice([1, 2]),
        "policy": random.choice(["headrace", "headrace", "fcfs", "priority", "static"]),
        "limits": SMALL_POOL_LIMITS,
        "max_num_seqs": random.randint(1, 6),
        "max_num_batched_tokens": random.randint(6, 24),
        "max_num_partial_prefills": random.randint(1, 3),
        "max_preemptions": random.randint(0, 3),
        "poison_crashes": random.randint(1, 3),
        "kv_headroom_fraction": random.choice([0.0, 0.1, 0.3]),
        "prefix_cache": random.random() < 0.7,
        "max_queued_requests": random.choice([4, 100]),
        "max_queued_tokens": random.choice([120, 10_000, 10_000]),
    }


def random_arrival(random: Random) -> Arrival:
    """Return a request, often with a prefix that others have too."""
    return Arrival(
        prompt=random.choice(PREFIXES)
        + [random.randrange(8, VOCAB_SIZE) for _ in range(random.randint(1, 24))],
        max_tokens=random.randint(0, 20),
        tenant=random.choice(TENANTS),
        tokenizer=random.randrange(NUM_TOKENIZERS),
        priority=random.randint(-1, 1),
        traffic_class=random.choice(list(TrafficClass)),
        sampling=SamplingParams(
            seed=random.randrange(4),
            ignore_eos=random.random() < 0.7,
            min_tokens=random.randrange(4),
            stop_token_ids=random.choice(STOP_TOKEN_IDS),
            num_logprobs=random.choice([-1, 0, 2]),
            num_prompt_logprobs=random.choice([-1, -1, 0, 1]),
        ),
        patience_s=random.choice([0, 0, 0, 1]),
    )
