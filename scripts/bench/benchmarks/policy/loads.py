"""What arrives in the runs of `scripts/bench/policy`, for whom, and on which machine.

Owns: the loads by name. Never knows: policies, figures. Each load is a function of the point of a
run and of a trace; with the same seed it is the same whatever the policy.

    tiers       three classes of equal size with promises of seconds, minutes and half an hour
    tenants     the same, from eight tenants, the k-th k times as rare as the first
    fairness    tenants of the trace, one class, nothing promised
    locality    as recorded, with the identity of contents, one class
    conversations  a tenth of them, each whole, in a pool so small that the order decides
    alone       a quiet tenant of an interactive class
    flooded     the same, beside one that sends ten times as much
    favoured    the same, the quiet tenant strictly first: nobody's order can serve it better
    reserved    interactive requests alone
    shared      the same beside more batch requests than fit
    batch       these alone, in steps no longer than those beside interactive requests
    memory      a pool so small that it decides, nothing promised
    storm       the same; in the second half outputs are four times as long
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.simulation.traces import Trace
from core.simulation.workload import (
    Promise,
    Workload,
    as_recorded,
    resampled,
    with_class_mix,
    with_one_tenant,
    with_zipf_tenants,
)
from core.tenancy.classes import TrafficClass

NUM_REQUESTS = 40_000
NUM_TENANTS = 8
FLOOD = 10
USUAL_MAX_TOKENS = 1024
FAST = Promise(6.0, 0.05)
SLOW_TIERS_S = (600.0, 1800.0)
SLOW_GAP_S = 0.4
SLOW_OUTPUT_S = 15 * SLOW_GAP_S  # of a slow tier's time, left for the output
BATCH_QPS = 10.0  # far more than is carried beside anything
SMALL_POOL_TOKENS = 30_000
CONVERSATION_SHARE = 10  # one of so many
CONVERSATIONS_POOL_TOKENS = 250_000
LAST = TrafficClass.ADMINISTRATIVE  # of whom nothing else is sent
NOTHING = dict.fromkeys(TrafficClass, Promise())
INTERACTIVE, STANDARD, BATCH = (
    TrafficClass.INTERACTIVE,
    TrafficClass.STANDARD,
    TrafficClass.BATCH,
)


@dataclass(frozen=True, slots=True)
class Point:
    """One run: everything its outcome depends on."""

    trace: str
    policy: str
    qps: float
    sigma: float
    margin: float
    seed: int
    scale: int  # requests and slow deadlines are divided by it
    load: str = "tiers"
    window: str = "on"  # off: deadlines alone decide
    charge: str = "time"
    spared: int = 0  # index + 1 of a request that is served behind all others, and not refused
    code: str = ""  # of what decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests and the machine that they meet."""

    workload: Workload
    machine: str = "qoserve-a100"
    kv_tokens: int = 0  # 0 = the machine's
    max_tokens: int = USUAL_MAX_TOKENS  # what clients ask for
    max_model_len: int = 16_384
    spared_deadline_ns: int = 0
    has_favourite: bool = False  # whose class goes before all others


def tiers(point: Point, trace: Trace) -> Load:
    """Return three tiers of equal size; the slow ones' deadlines are scaled."""
    return spare(Load(workload=tiered(poisson(point, trace), point)), point)


def tenants(point: Point, trace: Trace) -> Load:
    """Return the tiers, owned by several tenants."""
    load = tiers(replace(point, spared=0), trace)
    owned = with_zipf_tenants(load.workload, NUM_TENANTS, point.seed + 2)
    return spare(replace(load, workload=owned), point)


def fairness(point: Point, trace: Trace) -> Load:
    """Return the tenants of the trace at a rate that keeps many of them waiting."""
    workload = poisson(point, trace)
    return Load(workload=of_class(workload, STANDARD, NOTHING), machine="a100")


def locality(point: Point, trace: Trace) -> Load:
    """Return the first requests of the trace, `qps` times as fast as recorded."""
    count = max(2, len(trace) // point.scale)
    workload = first(as_recorded(trace, speed=point.qps, spread_s=3.0), count)
    alone = of_class(with_one_tenant(workload), STANDARD, NOTHING)
    longest = int((alone.prompt_tokens + alone.output_tokens).max()) + USUAL_MAX_TOKENS
    return Load(workload=alone, machine="h200", max_model_len=longest)


def conversations(point: Point, trace: Trace) -> Load:
    """Return some of the conversations of the trace whole, closer together by as much, in a pool so
    small that the order of service decides what is still cached. It is the same at every scale.
    """
    workload = as_recorded(trace, speed=CONVERSATION_SHARE * point.qps, spread_s=3.0)
    second_ids = np.array([ids[min(1, len(ids) - 1)] for ids in workload.hash_ids])
    chosen = np.flatnonzero(
        second_ids % CONVERSATION_SHARE == 0
    )  # the first id is the same for all
    load = locality(replace(point, scale=1), trace)
    few = of_class(with_one_tenant(_picked(workload, chosen)), STANDARD, NOTHING)
    return replace(load, workload=few, kv_tokens=CONVERSATIONS_POOL_TOKENS)


def alone(point: Point, trace: Trace) -> Load:
    """Return a quiet tenant."""
    return Load(workload=quiet(point, trace))


def flooded(point: Point, trace: Trace) -> Load:
    """Return the quiet tenant beside a flooder of the same class."""
    flood = named(poisson(point, trace, FLOOD * point.qps, more_seed=5), "flooder")
    both = merged(quiet(point, trace), of_class(flood, INTERACTIVE, {INTERACTIVE: FAST}))
    return Load(workload=both)


def favoured(point: Point, trace: Trace) -> Load:
    """Return the same, the quiet tenant in a class that is served strictly first."""
    load = flooded(point, trace)
    workload = load.workload
    is_quiet = workload.tenant_index == workload.tenants.index("quiet")
    classes = np.where(is_quiet, int(LAST), workload.traffic_class)
    promises = dict(workload.promises) | {LAST: FAST}
    changed = replace(workload, traffic_class=classes, promises=promises)
    return replace(load, workload=changed, has_favourite=True)


def reserved(point: Point, trace: Trace) -> Load:
    """Return interactive requests alone."""
    return Load(workload=quiet(point, trace))


def batch(point: Point, trace: Trace) -> Load:
    """Return batch requests alone, for as long, under the gap cap of interactive ones."""
    return Load(workload=of_class(nightly(point, trace), BATCH, {BATCH: Promise(0, FAST.itl_s)}))


def shared(point: Point, trace: Trace) -> Load:
    """Return interactive requests beside batch requests."""
    many = of_class(nightly(point, trace), BATCH, {BATCH: Promise()})
    return Load(workload=merged(quiet(point, trace), many))


def memory(point: Point, trace: Trace) -> Load:
    """Return requests that fill a small pool."""
    workload = of_class(poisson(point, trace), STANDARD, NOTHING)
    return Load(workload=workload, kv_tokens=SMALL_POOL_TOKENS)


def storm(point: Point, trace: Trace) -> Load:
    """Return the same, until outputs turn out longer than ever before."""
    load = memory(point, trace)
    outputs = load.workload.output_tokens.copy()
    outputs[len(outputs) // 2 :] *= 4
    longer = replace(load.workload, output_tokens=np.minimum(outputs, USUAL_MAX_TOKENS))
    return replace(load, workload=longer)


LOADS: Mapping[str, Callable[[Point, Trace], Load]] = {
    make.__name__: make
    for make in (
        tiers, tenants, fairness, locality, conversations, alone, flooded, favoured, reserved,
        shared, batch, memory, storm,
    )
}  # fmt: skip


def poisson(
    point: Point, trace: Trace, qps: float = 0.0, share: float = 1.0, more_seed: int = 0
) -> Workload:
    """Return Poisson arrivals with lengths of the trace; `share` is of the usual number."""
    count = max(2, int(NUM_REQUESTS // point.scale * share))
    seed = point.seed + more_seed
    return resampled(trace, qps=qps or point.qps, num_requests=count, seed=seed)


def tiered(workload: Workload, point: Point) -> Workload:
    """Return `workload` in three tiers of equal size; the slow ones' deadlines are scaled."""
    slow = [Promise((tier_s - SLOW_OUTPUT_S) / point.scale, SLOW_GAP_S) for tier_s in SLOW_TIERS_S]
    classes = (INTERACTIVE, STANDARD, BATCH)
    mixed = with_class_mix(workload, dict.fromkeys(classes, 1.0), point.seed + 1)
    return mixed.with_promises(dict(zip(classes, (FAST, *slow), strict=True)))


def quiet(point: Point, trace: Trace) -> Workload:
    """Return interactive requests of one tenant."""
    fewer = poisson(point, trace, share=1 / FLOOD)
    return of_class(named(fewer, "quiet"), INTERACTIVE, {INTERACTIVE: FAST})


def nightly(point: Point, trace: Trace) -> Workload:
    """Return more requests of another tenant than fit, for as long as the quiet one sends."""
    share = BATCH_QPS / point.qps / FLOOD
    return named(poisson(point, trace, BATCH_QPS, share, 6), "nightly")


def named(workload: Workload, tenant: str) -> Workload:
    """Return `workload` with one tenant of that name."""
    return replace(with_one_tenant(workload), tenants=(tenant,))


def of_class(
    workload: Workload, traffic_class: TrafficClass, promises: Mapping[TrafficClass, Promise]
) -> Workload:
    """Return `workload` in one class, with promises."""
    return with_class_mix(workload, {traffic_class: 1.0}, 0).with_promises(promises)


def first(workload: Workload, count: int) -> Workload:
    """Return the first `count` requests."""
    return _picked(workload, np.arange(min(count, len(workload))))


def merged(one: Workload, other: Workload) -> Workload:
    """Return the requests of two workloads without contents, in the order of arrival."""
    names = (*one.tenants, *other.tenants)
    both = Workload(
        arrival_ns=np.concatenate([one.arrival_ns, other.arrival_ns]),
        prompt_tokens=np.concatenate([one.prompt_tokens, other.prompt_tokens]),
        output_tokens=np.concatenate([one.output_tokens, other.output_tokens]),
        traffic_class=np.concatenate([one.traffic_class, other.traffic_class]),
        tenants=names,
        tenant_index=np.concatenate([one.tenant_index, other.tenant_index + len(one.tenants)]),
        promises=dict(one.promises) | dict(other.promises),
    )
    return _picked(both, np.argsort(both.arrival_ns, kind="stable"))


def spare(load: Load, point: Point) -> Load:
    """Return `load` up to the deadline of one request, which is promised nothing any more: it is
    served with what all others leave, and nobody refuses it.
    """
    if not point.spared:
        return load
    workload, index = load.workload, point.spared - 1
    last_ns = int(workload.ttft_deadline_ns()[index])
    classes = workload.traffic_class.copy()
    classes[index] = LAST
    promises = dict(workload.promises) | {LAST: Promise()}
    changed = replace(workload, traffic_class=classes).with_promises(promises)
    count = int(np.searchsorted(workload.arrival_ns, last_ns, side="right"))
    return replace(load, workload=first(changed, count), spared_deadline_ns=last_ns)


def _picked(workload: Workload, chosen: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Workload:
    columns = ("arrival_ns", "prompt_tokens", "output_tokens", "tenant_index", "traffic_class")
    picked = replace(workload, **{name: getattr(workload, name)[chosen] for name in columns})
    optional = ("names_class", "max_tokens")
    present = [name for name in optional if len(getattr(workload, name))]
    picked = replace(picked, **{name: getattr(workload, name)[chosen] for name in present})
    ids: Sequence[tuple[int, ...]] = workload.hash_ids
    return replace(picked, hash_ids=tuple(ids[i] for i in chosen.tolist()) if ids else ())
