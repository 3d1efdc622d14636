"""More than any policy can reach: how many promises can be kept when most of what limits is gone.

Owns: the bound. Never knows: policies. What is left of the machine is one server that computes
prompts at the fastest rate of any step and nothing else: no decodes, no gaps, no memory, and every
prompt is there from the beginning. Who can be in time there is the problem 1||ΣU_j, which Moore and
Hodgson solve exactly (Management Science 1968): go through the deadlines in order, and whenever one
would be late leave out the longest so far.
"""

import heapq

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.policy.cost_model import CostModel, StepWork
from core.simulation.workload import Workload


def most_promises_kept(workload: Workload, model: CostModel, max_tokens: int) -> int:
    """Return an upper bound on the requests with the first token in time, steps of up to
    `max_tokens`; without noise, and without a prefix cache.
    """
    deadline_ns = workload.ttft_deadline_ns()
    promised = deadline_ns > 0
    begin_ns = int(workload.arrival_ns[0])
    due_s = (deadline_ns[promised] - begin_ns) / NS_PER_S
    work_s = workload.prompt_tokens[promised] / fastest_rate(model, max_tokens)
    return int(np.count_nonzero(~promised)) + most_on_time(due_s, work_s)


def fastest_rate(model: CostModel, max_tokens: int) -> float:
    """Return the most prompt tokens a second of any step."""
    steps = (StepWork().with_prefill(size, 0) for size in range(1, max_tokens + 1))
    return max(work.num_tokens / model.duration_ns(work) for work in steps) * NS_PER_S


def most_on_time(due: npt.NDArray[np.float64], work: npt.NDArray[np.float64]) -> int:
    """Return the most jobs of one machine that can be done by when they are due, all from 0."""
    longest: list[float] = []  # a heap of what is kept, negative
    total = 0.0
    for index in np.argsort(due, kind="stable").tolist():
        heapq.heappush(longest, -float(work[index]))
        total += float(work[index])
        if total > due[index]:
            total += heapq.heappop(longest)
    return len(longest)
