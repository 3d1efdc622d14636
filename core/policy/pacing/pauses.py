"""Which decodes sit a step out.

Owns: when that is worth it, and for whom. Never knows: how a step's limit comes about (`gaps`).
Decodes of pausable classes are left out of a step

    if it could not keep the gaps of the others with them, by the whole margin: as few as have to be
    if a prompt of a class that cannot be paused would be late at this pace, and they take an eighth
    of the step or more: all that can be

One that would itself be late in the step after the next is never left out; without a cap of its own
it counts as capped at LONGEST_PAUSE_NS. So none waits longer than that, plus a step.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from core.clock import NS_PER_S
from core.policy.base import DecodeBatch, Step
from core.policy.cost_model import CostModel, StepWork, largest_chunk
from core.policy.limits import Limits
from core.policy.pacing.gaps import UNLIMITED_NS, Gaps, Mask, Times, decode_work, is_unlimited
from core.policy.queues.flows import NO_PROMISE_NS, Flows, due_ns
from core.tenancy.classes import NUM_CLASSES, TrafficClass

LONGEST_PAUSE_NS = 2 * NS_PER_S
PATIENT_NS = UNLIMITED_NS - LONGEST_PAUSE_NS
_NO_WORK = StepWork()
WORTH_A_PAUSE = 8  # a pause for an urgent prompt gains at least this part of the step


@dataclass(frozen=True, slots=True)
class Urgent:
    """The prompt that is due first among classes that cannot be paused."""

    due_ns: int
    num_tokens: int  # left to compute
    context: int


class Pauses:
    """Those of all replicas."""

    def __init__(self, limits: Limits, flows: Flows) -> None:
        """Look at the queues of `flows`."""
        self._flows = flows
        self.configure(limits)

    def configure(self, limits: Limits) -> None:
        """Take over which classes may be paused."""
        self._is_pausable = np.array([limits.of(c).pausable for c in TrafficClass], np.bool_)

    def kept(self, step: Step, model: CostModel, gaps: Gaps, work: StepWork) -> Mask:
        """Return which decodes stay in a step, bool[n]; `work` is that of all."""
        decodes, slack = gaps.decodes, gaps.slack_ns
        pausable = self._is_pausable[decodes.traffic_class]
        everyone = np.ones(len(slack), np.bool_)
        tightest_ns = gaps.tightest_ns(~pausable)
        if is_unlimited(tightest_ns) or not pausable.any():
            return everyone
        all_ns = model.duration_ns(work)
        patience = np.where(slack > UNLIMITED_NS // 2, slack - PATIENT_NS, slack)
        optional = pausable & (patience > 2 * max(tightest_ns, all_ns))
        limit_ns = gaps.limit_ns(tightest_ns)
        if all_ns > limit_ns:
            return _as_many_as_fit(model, decodes, patience, optional, limit_ns)
        gain_ns = all_ns - model.duration_ns(decode_work(decodes, ~optional))
        if gain_ns * WORTH_A_PAUSE < limit_ns:
            return everyone
        urgent = self._urgent(step)
        if urgent is not None and _is_late(model, work, urgent, limit_ns, gaps.begin_ns):
            return ~optional
        return everyone

    def _urgent(self, step: Step) -> Urgent | None:
        """Return the prompt that is due first among classes that cannot be paused."""
        prompts = [r for r in step.prefills() if not self._is_pausable[r.traffic_class]]
        if step.may_start_requests:
            due = self._flows.due_ns.reshape(-1, NUM_CLASSES)[:, ~self._is_pausable]
            if due.size and due.min() < NO_PROMISE_NS:
                tenant, column = divmod(int(due.argmin()), due.shape[1])
                traffic_class = int(np.flatnonzero(~self._is_pausable)[column])
                head = self._flows.head(tenant * NUM_CLASSES + traffic_class)
                prompts += [] if head is None else [head]
        first = min(prompts, key=due_ns, default=None)
        if first is None or due_ns(first) >= NO_PROMISE_NS:
            return None
        remaining = step.remaining(first)
        return Urgent(due_ns(first), remaining, first.num_tokens - remaining)


def is_light(model: CostModel, decodes_ns: int, limit_ns: int) -> bool:
    """Tell whether decodes fit into a step so easily that it is not worth a pause."""
    gain_ns = decodes_ns - model.duration_ns(_NO_WORK)
    return decodes_ns <= limit_ns and gain_ns * WORTH_A_PAUSE < limit_ns


def _as_many_as_fit(
    model: CostModel, decodes: DecodeBatch, slack: Times, optional: Mask, limit_ns: int
) -> Mask:
    """Return `optional` decodes, those that waited longest first, as long as the step fits, and all
    others.
    """
    kept = np.logical_not(optional)
    order = np.flatnonzero(optional)
    order = order[np.argsort(slack[order], kind="stable")]
    base = decode_work(decodes, kept)
    contexts = np.concatenate([[0], np.cumsum(decodes.context_tokens[order], dtype=np.int64)])
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        count = base.num_decodes + middle
        work = StepWork(
            num_decodes=count,
            decode_context=base.decode_context + int(contexts[middle]),
            num_outputs=count,
        )
        if model.duration_ns(work) <= limit_ns:
            low = middle
        else:
            high = middle - 1
    kept[order[:low]] = True
    return kept


def _is_late(
    model: CostModel, work: StepWork, urgent: Urgent, limit_ns: int, begin_ns: int
) -> bool:
    """Tell whether the urgent prompt is late if steps go on to take as little of it as this one."""
    chunk = largest_chunk(model, work, urgent.context, urgent.num_tokens, limit_ns)
    num_steps = ceil(urgent.num_tokens / max(1, chunk))
    return begin_ns + num_steps * limit_ns > urgent.due_ns
