"""Small workloads and machines for tests of the simulator, with round numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.policy.cost_model import StepWork
from core.scheduler.settings import EngineSettings
from core.simulation.run import END_OF_TEXT, SimulationSettings
from core.simulation.workload import START_NS, Promise, Workload
from core.tenancy.classes import TrafficClass
from tests.support.scheduler.checked_engine import make_settings

NS_PER_MS = 1_000_000
NO_PROMISES: Mapping[TrafficClass, Promise] = {}


@dataclass(frozen=True)
class RoundMachine:
    """10 ms a step, 0.1 ms a prompt token, 1 ms a decode."""

    kv_tokens: int = 100_000

    def duration_ns(self, work: StepWork) -> int:
        """Return the time of a step, ns."""
        tenths = 100 + work.num_prefill_tokens + 10 * work.num_decodes
        return tenths * NS_PER_MS // 10

    def copy_ns(self, num_tokens: int) -> int:
        """Return the time of copying so many tokens, ns."""
        return num_tokens * NS_PER_MS // 100


def make_workload(
    rows: Sequence[tuple[float, int, int]],
    *,
    tenants: Sequence[int] | None = None,
    classes: Sequence[TrafficClass] | None = None,
    promises: Mapping[TrafficClass, Promise] = NO_PROMISES,
    hash_ids: tuple[tuple[int, ...], ...] = (),
) -> Workload:
    """Return requests of (arrival in ms, prompt tokens, output tokens)."""
    arrivals, prompts, outputs = zip(*rows, strict=True)
    owners = np.array(tenants if tenants is not None else [0] * len(rows), np.int64)
    return Workload(
        arrival_ns=START_NS + np.round(np.array(arrivals) * NS_PER_MS).astype(np.int64),
        prompt_tokens=np.array(prompts, np.int64),
        output_tokens=np.array(outputs, np.int64),
        tenants=tuple(f"t{number}" for number in range(int(owners.max()) + 1)),
        tenant_index=owners,
        traffic_class=np.array(classes or [TrafficClass.STANDARD] * len(rows), np.int64),
        promises=promises,
        hash_ids=hash_ids,
    )


def random_workload(num_requests: int, seed: int, num_tenants: int = 3) -> Workload:
    """Return a busy mixture of short and long requests of all classes and some tenants."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(40.0, num_requests))
    prompts = random.integers(1, 400, num_requests)
    outputs = random.integers(1, 20, num_requests)
    rows = list(zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True))
    return make_workload(
        rows,
        tenants=random.integers(0, num_tenants, num_requests).tolist(),
        classes=[TrafficClass(c) for c in random.integers(0, 4, num_requests).tolist()],
        promises={each: Promise(1.0, 0.05) for each in TrafficClass},
    )


def simulated_settings(
    *, num_blocks: int = 6250, max_tokens: int = 0, **engine: object
) -> SimulationSettings:
    """Return a round machine with blocks of 16 tokens; `engine` overrides its limits."""
    return SimulationSettings(
        engine=engine_settings(**engine),
        hardware=RoundMachine(),
        num_blocks=num_blocks,
        max_tokens=max_tokens,
    )


def engine_settings(**overrides: object) -> EngineSettings:
    """Return limits that do not bind small workloads."""
    fields: dict[str, object] = {
        "max_model_len": 4096,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 256,
        "block_size": 16,
        "prefix_cache": False,
        "eos_token_ids": (END_OF_TEXT,),
    }
    return make_settings(**(fields | overrides))
