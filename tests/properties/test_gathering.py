"""P4 for prompts that gather: what is held is held for others of its class, and not for long."""

from dataclasses import dataclass

import numpy as np
import pytest

from core.clock import NS_PER_S
from core.config.scheduling import PolicyConfig
from core.simulation.history import History
from core.simulation.workload import Promise
from tests.support.loads.promised_loads import FAST, SLOW, stream
from tests.support.loads.watched_shedding import watch

SEEDS = range(1, 5)
LOADS = (0.9, 1.5)
PROMISES = {FAST: Promise(6.0, 0.06), SLOW: Promise(60.0, 0.4)}


@dataclass(frozen=True)
class Held:
    """A prompt of which one token was left: the step that left it, and that which computed it."""

    arrival_ns: int
    since: int
    until: int


def held_prompts(history: History) -> list[Held]:
    """Return the prompts of the tight class whose last token was computed in a later step."""
    workload, found = history.workload, list[Held]()
    for index in np.flatnonzero(workload.traffic_class == FAST).tolist():
        mine = history.share_request == index
        steps, done = history.share_step[mine], np.cumsum(history.share_tokens[mine])
        prompt = int(workload.prompt_tokens[index])
        left_one, whole = np.searchsorted(done, (prompt - 1, prompt))
        if whole < len(done) and done[left_one] == prompt - 1 and left_one < whole:
            arrival_ns = int(workload.arrival_ns[index])
            found.append(Held(arrival_ns, int(steps[left_one]), int(steps[whole])))
    return found


def prompts_in(history: History, step: int) -> int:
    """Return the tokens of prompts of the tight class in a step."""
    rows = history.share_step == step
    is_fast = history.workload.traffic_class[history.share_request[rows]] == FAST
    tokens = history.share_tokens[rows][is_fast]
    return int(tokens[tokens > 1].sum())


def run_seed(seed: int) -> int:
    """P4 for the loads of a seed; returns how many prompts were held."""
    fraction, num_held = PolicyConfig().company_fraction, 0
    longest_s = (1 - (1 - fraction) ** 2) * PROMISES[FAST].ttft_s
    for load in LOADS:
        workload = stream(seed, load, 300, 3).with_promises(PROMISES)
        history, _ = watch(workload, sigma=0.05, seed=seed)
        step_ns = int((history.step_end_ns - history.step_begin_ns).max())
        for held in held_prompts(history):
            for step in range(held.since, held.until):
                assert prompts_in(history, step), (seed, load, held, step)
            last_ns = held.arrival_ns + int(longest_s * NS_PER_S) + step_ns
            assert history.step_begin_ns[held.until] <= last_ns, (seed, load, held)
            num_held += 1
    return num_held


@pytest.mark.slow
def test_prompts_are_held_only_for_others_of_their_class() -> None:
    """In each step in between some of those are computed, and none is held beyond its patience."""
    assert sum(run_seed(seed) for seed in SEEDS) > 10
