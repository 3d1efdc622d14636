"""P3: who floods the engine changes nothing for the others but what the bound allows.

How: the same arrivals of quiet tenants, who want less than their shares, are played with a flooder
and without it. At no time are they further behind than the windows and a request allow; whoever of
them is protected makes it; and nobody finds a prefix that only the flooder has sent. A failure
names its seed.
"""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from core.clock import NS_PER_MS, NS_PER_S
from core.config.scheduling import PolicyConfig
from core.policy.queues.flows import Flows
from core.request import Request
from core.simulation.history import History
from core.simulation.metrics import request_times
from core.simulation.workload import Workload
from core.tenancy.classes import NUM_CLASSES, TrafficClass
from tests.support.loads.promised_loads import stream
from tests.support.loads.watched_fairness import Ints, limits_of, plain_classes, watched_engine
from tests.support.loads.watched_shedding import watch
from tests.support.scheduler.checked_engine import make_settings

SEEDS = range(8)
NUM_STEPS = 200
STEP_TOKENS = 64
QUANTUM = 16
UNITS = 1000  # of charge for a token
LONGEST_PROMPT, LONGEST_OUTPUT = 100, 8
QUIET, FLOODER = "abc", "z"
NUM_FLOODING = 150  # requests of the flooder that wait at any time
QUIET_CLASS = TrafficClass.STANDARD
OTHER_CLASSES = (TrafficClass.INTERACTIVE, TrafficClass.BATCH)
DEMAND = 0.7  # of what the quiet tenants could have beside the flooder


class Crowd:
    """Quiet tenants, and a flooder if wanted, in their class or in another."""

    def __init__(self, seed: int, *, is_flooded: bool) -> None:
        """Everything but the flood comes from `seed` alone."""
        self.random = Random(seed)
        self.window_tokens = self.random.choice([50, 200])
        self.weight = self.random.choice([0.5, 1.0, 2.0])  # of each quiet tenant
        self.class_of_flood = self.random.choice([QUIET_CLASS, QUIET_CLASS, *OTHER_CLASSES])
        self.class_weight = self.random.choice([1.0, 2.0, 4.0])  # of that of the quiet
        self.is_promised = self.random.random() < 0.7  # and the flooder asks for more haste
        self.flood = Random()
        self.flood.setstate(self.random.getstate())
        self.is_flooded = is_flooded
        settings = make_settings(
            max_num_batched_tokens=STEP_TOKENS,
            max_num_seqs=64,
            max_num_partial_prefills=64,
            policy="headrace",
            tuning=PolicyConfig(
                charge="tokens", tenant_window_tokens=self.window_tokens, quantum_tokens=QUANTUM
            ),
            limits=limits_of(
                plain_classes(1, self.class_weight, 1, 1),
                dict.fromkeys(QUIET, self.weight) | {FLOODER: 1.0},
            ),
        )
        self.engine, self.policy = watched_engine(settings, 4000)
        self.quiet: list[Request] = []
        self.num_requests = 0
        self.owed_tokens = 0.0

    @property
    def quiet_share(self) -> float:
        """What the quiet tenants can have of every step, together."""
        if self.class_of_flood != QUIET_CLASS:
            return self.class_weight / (self.class_weight + 1)
        quiet = self.weight * len(QUIET)
        return quiet / (quiet + 1)

    def run(self) -> Ints:
        """Return what the quiet tenants were charged so far after each step, int64[steps]."""
        served = np.zeros(NUM_STEPS, np.int64)
        for step in range(NUM_STEPS):
            self.arrive()
            self.engine.step()
            by_tenant = self.policy.shares.charged.reshape(-1, NUM_CLASSES).sum(axis=1)
            served[step] = sum(by_tenant[each] for each in self.quiet_indexes())
        return served

    def quiet_indexes(self) -> list[int]:
        """Return which tenants are quiet."""
        flows: Flows = self.policy.flows
        return [index for index, name in enumerate(flows.tenant_names) if name in tuple(QUIET)]

    def arrive(self) -> None:
        """Let the quiet come as their share allows, and the flooder always, with their prompts."""
        if self.is_flooded:
            while self.num_waiting_of_flooder() < NUM_FLOODING:
                self.submit(self.flood, FLOODER, self.class_of_flood)
        self.owed_tokens += DEMAND * self.quiet_share * STEP_TOKENS
        while self.owed_tokens > 0:
            name = QUIET[len(self.quiet) % len(QUIET)]
            request = self.submit(self.random, name, QUIET_CLASS)
            self.quiet.append(request)
            self.owed_tokens -= request.prompt_len + 2 * request.max_tokens

    def num_waiting_of_flooder(self) -> int:
        """Return how many requests of the flooder wait."""
        flows = self.policy.flows
        if FLOODER not in flows.tenant_names:
            return 0
        flow = flows.tenant_names.index(FLOODER) * NUM_CLASSES + self.class_of_flood
        return int(flows.num_waiting[flow])

    def submit(self, random: Random, tenant: str, traffic_class: TrafficClass) -> Request:
        """Let a request of `tenant` arrive."""
        self.num_requests += 1
        length = random.randint(1, LONGEST_PROMPT)
        prompt = [random.randrange(10, 50) for _ in range(length)]
        output = random.randint(1, LONGEST_OUTPUT)
        request = self.engine.make_request(
            self.num_requests, prompt, output, tenant=tenant, traffic_class=traffic_class
        )
        if self.is_promised:
            due_in_ns = NS_PER_MS if tenant == FLOODER else NS_PER_S
            request.ttft_deadline_ns = request.arrival_ns + due_in_ns
        return self.engine.submit(request)

    def bound(self) -> float:
        """Return by how much a flooder may delay the service of all quiet tenants, in units.

        The flooder is at most a window ahead, and once more before it is known to be; each of the
        quiet waits for that share of it, a grant and its own request. From another class all of
        them wait for it together.
        """
        window = 2.0 * self.window_tokens
        if self.class_of_flood == QUIET_CLASS:
            window *= self.weight * len(QUIET) / min(1.0, self.weight)
        own = LONGEST_PROMPT + 2 * LONGEST_OUTPUT + QUANTUM
        return UNITS * (window + len(QUIET) * own + STEP_TOKENS)


def run_seed(seed: int) -> None:
    """P3 for one crowd."""
    alone, flooded = Crowd(seed, is_flooded=False), Crowd(seed, is_flooded=True)
    behind = alone.run() - flooded.run()
    assert behind.max() <= flooded.bound(), (seed, behind.max(), flooded.bound())
    hits = [[each.num_cached_tokens for each in crowd.quiet] for crowd in (alone, flooded)]
    assert hits[0] == hits[1], f"seed {seed}: a prefix of the flooder was found"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flooder_delays_the_quiet_by_no_more_than_the_bound(seed: int) -> None:
    """P3: with and without a flooder, others are served the same but for windows and requests."""
    run_seed(seed)


def test_the_flood_takes_what_the_quiet_leave() -> None:
    """A flood that never came was not tested."""
    crowd = Crowd(0, is_flooded=True)
    quiet = int(crowd.run()[-1])
    assert crowd.policy.shares.total_charged > 1.3 * quiet


def with_flooder(quiet: Workload, seed: int) -> Workload:
    """Return `quiet` and many more requests of one more tenant."""
    flood = stream(seed + 100, 3.0, 5 * len(quiet))
    order = np.argsort(np.concatenate([quiet.arrival_ns, flood.arrival_ns]), kind="stable")

    def merged(mine: Ints, theirs: Ints) -> Ints:
        return np.concatenate([mine, theirs])[order]

    return replace(
        quiet,
        arrival_ns=merged(quiet.arrival_ns, flood.arrival_ns),
        prompt_tokens=merged(quiet.prompt_tokens, flood.prompt_tokens),
        output_tokens=merged(quiet.output_tokens, flood.output_tokens),
        traffic_class=merged(quiet.traffic_class, flood.traffic_class),
        tenants=("quiet", "flooder"),
        tenant_index=merged(quiet.tenant_index, flood.tenant_index + 1),
    )


def late(history: History, ids: set[int]) -> list[int]:
    """Return those of `ids` without a first token in time."""
    on_time = request_times(history).on_time
    return [each for each in sorted(ids) if not on_time[each - 1]]


@pytest.mark.slow
def test_nobody_who_is_protected_is_late_in_a_flood() -> None:
    """P3: promises under protection are kept with a flooder as without it."""
    num_protected = 0
    for seed in (1, 2):
        quiet = stream(seed, 0.3, 100)
        for workload in (quiet, with_flooder(quiet, seed)):
            history, policy = watch(workload)
            mine = {each for each in policy.protected if workload.tenant_index[each - 1] == 0}
            assert late(history, mine) == [], f"seed {seed}"
            num_protected += len(mine)
    assert num_protected > 100
