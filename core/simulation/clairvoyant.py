"""Plans with the whole future known, and the best that any of them reaches.

Owns: the orders, each a plan over all requests of a workload before the first arrives. Never knows:
steps; a plan reckons with one rate of prompt tokens. No order is best for every workload, and the
best one cannot be found in sensible time (1|r_j, pmtn|ΣU_j with thousands of jobs): what counts is
the best of several.

    earliest-deadline   everybody; the late are refused when they are next
    least-slack         everybody, by the latest start
    shortest-first      everybody, the shortest prompt first
    most-in-time        those left when the longest is dropped each time that a queue in the order
                        of deadlines becomes late (after Moore and Hodgson, Management Science 1968)
    densest-in-time     the same, but what is dropped has the fewest output tokens for its work
    evenly-in-time      most-in-time, but the longest of the quarter of lengths that was dropped
                        least: none is to be dropped EVEN_RATIO times as often as another
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.engine_core import policy_settings
from core.policy.baselines.clairvoyant import ClairvoyantPolicy
from core.policy.cost_model import CostModel, StepWork, largest_chunk
from core.simulation.policies import prepare
from core.simulation.run import SimulationSettings
from core.simulation.workload import Workload

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Plan = Mapping[int, int]
Order = Callable[[Workload, float], Plan]

TYPICAL_DECODES = 32
TYPICAL_CONTEXT = 2048
NEVER_NS = 1 << 62
LONGEST_STEP_NS = 400_000_000
LOOK_AHEAD_S = 2.0
NUM_QUARTERS = 4
EVEN_RATIO = 1.8  # of the longest quarter to the others
MODEL_POLICY = "gap-edf"  # whose budgets of a step the plans are carried out with


def earliest_deadline(workload: Workload, tokens_per_s: float) -> Plan:
    """Return everybody by deadline."""
    return _plan(workload, _due_ns(workload), np.ones(len(workload), np.bool_))


def least_slack(workload: Workload, tokens_per_s: float) -> Plan:
    """Return everybody by the latest start."""
    work_ns = (workload.prompt_tokens / tokens_per_s * NS_PER_S).astype(np.int64)
    return _plan(workload, _due_ns(workload) - work_ns, np.ones(len(workload), np.bool_))


def shortest_first(workload: Workload, tokens_per_s: float) -> Plan:
    """Return everybody by the length of the prompt."""
    return _plan(workload, workload.prompt_tokens, np.ones(len(workload), np.bool_))


def most_in_time(workload: Workload, tokens_per_s: float) -> Plan:
    """Return by deadline who is left when the longest are dropped."""
    return _plan(workload, _due_ns(workload), _kept(workload, tokens_per_s, by_density=False))


def densest_in_time(workload: Workload, tokens_per_s: float) -> Plan:
    """Return by deadline who is left when those with the least output for their work go."""
    return _plan(workload, _due_ns(workload), _kept(workload, tokens_per_s, by_density=True))


def evenly_in_time(workload: Workload, tokens_per_s: float) -> Plan:
    """Return by deadline who is left when the longest of each quarter of lengths are dropped."""
    ranks = np.argsort(np.argsort(workload.prompt_tokens, kind="stable"))
    quarter = ranks * NUM_QUARTERS // len(ranks)
    kept = _kept(workload, tokens_per_s, by_density=False, quarter=quarter)
    return _plan(workload, _due_ns(workload), kept)


ORDERS: Mapping[str, Order] = {
    "earliest-deadline": earliest_deadline,
    "least-slack": least_slack,
    "shortest-first": shortest_first,
    "most-in-time": most_in_time,
    "densest-in-time": densest_in_time,
    "evenly-in-time": evenly_in_time,
}


def prepare_order(
    name: str, workload: Workload, settings: SimulationSettings, margin: float = 0.0
) -> tuple[SimulationSettings, ClairvoyantPolicy]:
    """Return the settings and a new policy that follows the order of that name."""
    settings, _ = prepare(MODEL_POLICY, settings, margin)
    engine, hardware = settings.engine, settings.hardware
    tokens_per_s = planned_rate(workload, hardware, engine.max_num_batched_tokens, margin)
    plan = ORDERS[name](workload, tokens_per_s)
    return settings, ClairvoyantPolicy(policy_settings(engine), hardware, plan, margin=margin)


def planned_rate(
    workload: Workload, model: CostModel, max_tokens: int, margin: float = 0.0
) -> float:
    """Return the prompt tokens a second in steps at the tightest gap, beside typical decodes."""
    caps_ns = workload.itl_cap_ns()
    promised = caps_ns[caps_ns > 0]
    gap_ns = int(promised.min()) if len(promised) else LONGEST_STEP_NS
    limit_ns = int(gap_ns / (1 + margin))
    decodes = StepWork(
        num_decodes=TYPICAL_DECODES,
        decode_context=TYPICAL_DECODES * TYPICAL_CONTEXT,
        num_outputs=TYPICAL_DECODES,
    )
    chunk = largest_chunk(model, decodes, 0, max_tokens, limit_ns)
    return max(1, chunk) / limit_ns * NS_PER_S


def kept_in_time(
    arrival_s: Floats,
    deadline_s: Floats,
    work_s: Floats,
    worth: Floats,
    quarter: npt.NDArray[np.int64] | None = None,
) -> Mask:
    """Return who is served, bool[n], if all are served by deadline and one of the least worth for
    its work is dropped whenever somebody would be late; arrivals are in order. With the `quarter`
    of each, int64[n], one of the quarter of which the fewest were dropped so far.

    Those of the next LOOK_AHEAD_S count as if they were there: nobody is dropped too soon.
    """
    kept = np.ones(len(arrival_s), np.bool_)
    drops = np.zeros(NUM_QUARTERS)
    who, left, now_s, first = np.empty(0, np.int64), np.empty(0), 0.0, 0
    while first < len(arrival_s):
        who, left = _serve(who, left, arrival_s[first] - now_s)
        now_s = float(arrival_s[first])
        end = int(np.searchsorted(arrival_s, now_s + LOOK_AHEAD_S, side="right"))
        who = np.concatenate([who, np.arange(first, end)])
        left = np.concatenate([left, work_s[first:end]])
        order = np.argsort(deadline_s[who], kind="stable")
        who, left, first = who[order], left[order], end
        while (late := np.cumsum(left) > deadline_s[who] - now_s).any():
            upto = int(late.argmax()) + 1
            cost = left[:upto] / np.maximum(worth[who[:upto]], 1e-12)
            if quarter is not None:
                among = drops[quarter[who[:upto]]]
                cost = np.where(among == among.min(), cost, -1.0)
            dropped = int(cost.argmax())
            kept[who[dropped]] = False
            if quarter is not None:
                is_last = quarter[who[dropped]] == NUM_QUARTERS - 1
                drops[quarter[who[dropped]]] += 1 / EVEN_RATIO if is_last else 1
            who, left = np.delete(who, dropped), np.delete(left, dropped)
    return kept


def _serve(
    who: npt.NDArray[np.int64], left: Floats, elapsed_s: float
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Serve the queue from its front for a while."""
    ends = np.cumsum(left)
    done = int(np.searchsorted(ends, elapsed_s, side="right"))
    used = float(ends[done - 1]) if done else 0.0
    who, left = who[done:], left[done:].copy()
    if len(left):
        left[0] -= elapsed_s - used
    return who, left


def _kept(
    workload: Workload,
    tokens_per_s: float,
    *,
    by_density: bool,
    quarter: npt.NDArray[np.int64] | None = None,
) -> Mask:
    ones = np.ones(len(workload))
    return kept_in_time(
        workload.arrival_ns / NS_PER_S,
        _due_ns(workload) / NS_PER_S,
        workload.prompt_tokens / tokens_per_s,
        workload.output_tokens.astype(float) if by_density else ones,
        quarter,
    )


def _due_ns(workload: Workload) -> npt.NDArray[np.int64]:
    deadlines = workload.ttft_deadline_ns()
    return np.where(deadlines > 0, deadlines, NEVER_NS + workload.arrival_ns)


def _plan(workload: Workload, keys: npt.NDArray[np.int64], chosen: Mask) -> Plan:
    """Return keys by request id."""
    indexes = np.flatnonzero(chosen)
    ids, values = (indexes + 1).tolist(), keys[indexes].tolist()
    return dict(zip(ids, values, strict=True))
