"""From a history to figures.

Owns: the definition of every figure. Never knows: how a history came about, how figures are shown.

    TTFT        first token − arrival
    ITL         between two tokens of a request that follow each other
    E2E         last token − arrival
    kept        the first token by its deadline, and at least 99 % of the gaps within the cap; a
                request that was refused, or never ended, has kept nothing
    goodput     requests and output tokens of those that kept their promise, a second of arrivals
    backlog     prompt tokens that have arrived and are neither computed nor refused
    service     tokens computed for a tenant, prompt and output, output twice

Latencies are seconds; percentiles interpolate linearly. Figures about requests leave out a warm-up:
the first requests by arrival.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.errors import RejectionReason
from core.request import RequestStatus
from core.simulation.history import History, Ints
from core.tenancy.classes import TrafficClass

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

PERCENTILES = (50, 90, 99)
KEPT_GAP_SHARE = 0.99
FAIRNESS_WINDOW_S = 30.0
OUTPUT_WEIGHT = 2  # an output token counts as so many prompt tokens
GROWTH_TOLERANCE = 0.01  # of what arrives: a backlog that grows faster is not stable
NUM_BACKLOG_POINTS = 400


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Of each request, float64[n] unless said otherwise; NaN where there is none."""

    ttft_s: Floats
    e2e_s: Floats
    num_tokens: Ints
    gap_s: Floats  # of every gap
    gap_request: Ints  # and whose it is
    num_late_gaps: Ints
    on_time: Mask  # served, and the first token by its deadline
    kept: Mask
    refused: Mask  # ended without having been served


def request_times(history: History) -> RequestTimes:
    """Work out what each request got."""
    workload, count = history.workload, len(history.workload)
    order = np.argsort(history.token_request, kind="stable")
    owner, token_ns = history.token_request[order], history.token_ns[order]
    num_tokens = np.bincount(owner, minlength=count)
    has_tokens = num_tokens > 0
    ends = np.cumsum(num_tokens)
    first_ns, last_ns = np.zeros(count, np.int64), np.zeros(count, np.int64)
    first_ns[has_tokens] = token_ns[(ends - num_tokens)[has_tokens]]
    last_ns[has_tokens] = token_ns[ends[has_tokens] - 1]
    follows = owner[1:] == owner[:-1]
    gap_ns, gap_request = np.diff(token_ns)[follows], owner[1:][follows]
    cap_ns = workload.itl_cap_ns()
    late = (cap_ns[gap_request] > 0) & (gap_ns > cap_ns[gap_request])
    num_late = np.bincount(gap_request[late], minlength=count)
    deadline_ns = workload.ttft_deadline_ns()
    served = np.isin(
        history.status, (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH)
    )
    in_time = (deadline_ns == 0) | (first_ns <= deadline_ns)
    on_time = served & has_tokens & in_time
    steady = num_late <= (1 - KEPT_GAP_SHARE) * np.maximum(num_tokens - 1, 0)
    return RequestTimes(
        ttft_s=_since(workload.arrival_ns, first_ns, has_tokens),
        e2e_s=_since(workload.arrival_ns, last_ns, has_tokens & served),
        num_tokens=num_tokens,
        gap_s=gap_ns / NS_PER_S,
        gap_request=gap_request,
        num_late_gaps=num_late,
        on_time=on_time,
        kept=on_time & steady,
        refused=np.isin(
            history.status,
            (RequestStatus.FINISHED_SHED, RequestStatus.FINISHED_EXPIRED),
        ),
    )


def _since(start_ns: Ints, end_ns: Ints, valid: Mask) -> Floats:
    return np.where(valid, (end_ns - start_ns) / NS_PER_S, np.nan)


def spread(values_s: Floats) -> dict[str, float]:
    """Return the percentiles and the largest of `values_s`, NaN left out; empty of nothing."""
    known = values_s[~np.isnan(values_s)]
    if not len(known):
        return {}
    points = np.percentile(known, PERCENTILES)
    named = {f"p{p}": float(value) for p, value in zip(PERCENTILES, points, strict=True)}
    return named | {"max": float(known.max())}


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of some requests."""

    num_requests: int
    num_refused: int
    ttft_s: dict[str, float]
    itl_s: dict[str, float]
    e2e_s: dict[str, float]
    late_gap_share: float
    miss_share: float  # of requests: promise not kept, refusals included
    ttft_miss_share: float  # the same, counting only the first token
    goodput_rps: float
    goodput_tokens_per_s: float


def summary(
    history: History, times: RequestTimes, chosen: Mask, among: Mask | None = None
) -> Summary:
    """Return the figures of the `chosen` requests, bool[n]; a second of arrivals is one of those
    `among` whom they were chosen, themselves by default.
    """
    count = int(np.count_nonzero(chosen))
    gaps = chosen[times.gap_request]
    window_s = _window_s(history, chosen if among is None else among)
    kept = chosen & times.kept
    num_gaps = int(np.count_nonzero(gaps))
    return Summary(
        num_requests=count,
        num_refused=int(np.count_nonzero(chosen & times.refused)),
        ttft_s=spread(times.ttft_s[chosen]),
        itl_s=spread(times.gap_s[gaps]),
        e2e_s=spread(times.e2e_s[chosen]),
        late_gap_share=int(times.num_late_gaps[chosen].sum()) / max(1, num_gaps),
        miss_share=1 - int(np.count_nonzero(kept)) / max(1, count),
        ttft_miss_share=1 - int(np.count_nonzero(chosen & times.on_time)) / max(1, count),
        goodput_rps=int(np.count_nonzero(kept)) / window_s,
        goodput_tokens_per_s=float(times.num_tokens[kept].sum()) / window_s,
    )


def _window_s(history: History, chosen: Mask) -> float:
    """Return how long requests arrived for; of such as came all at once, how long they took."""
    arrivals_ns = history.workload.arrival_ns[chosen]
    if not len(arrivals_ns):
        return 1.0
    window_ns = int(np.ptp(arrivals_ns))
    if not window_ns:
        window_ns = int(history.finished_ns[chosen].max() - arrivals_ns[0])
    return max(1, window_ns) / NS_PER_S


def after_warm_up(history: History, share: float) -> Mask:
    """Return which requests are not among the first `share` of all, bool[n]."""
    count = len(history.workload)
    return np.arange(count) >= int(share * count)


def by_class(history: History, times: RequestTimes, chosen: Mask) -> dict[str, Summary]:
    """Return the figures of each class that is there."""
    classes = history.workload.traffic_class
    groups = ((each.label, chosen & (classes == each)) for each in TrafficClass)
    return {name: summary(history, times, group, chosen) for name, group in groups if group.any()}


def by_tenant(history: History, times: RequestTimes, chosen: Mask) -> dict[str, Summary]:
    """Return the figures of each tenant that is there."""
    indexes, tenants = history.workload.tenant_index, history.workload.tenants
    groups = ((name, chosen & (indexes == index)) for index, name in enumerate(tenants))
    return {name: summary(history, times, group, chosen) for name, group in groups if group.any()}


def by_prompt_quartile(history: History, times: RequestTimes, chosen: Mask) -> list[float]:
    """Return the share of promises kept in each quartile of prompt lengths, shortest first."""
    lengths = history.workload.prompt_tokens
    bounds = np.percentile(lengths[chosen], (25, 50, 75))
    quartile = np.searchsorted(bounds, lengths, side="left")
    groups = [chosen & (quartile == number) for number in range(4)]
    return [float(times.kept[group].mean()) if group.any() else np.nan for group in groups]


def refusals(history: History) -> dict[str, int]:
    """Return how many requests were refused, by reason."""
    counts = np.bincount(history.reason, minlength=len(RejectionReason))
    reasons = (reason for reason in RejectionReason if reason is not RejectionReason.NONE)
    return {reason.code: int(counts[reason]) for reason in reasons if counts[reason]}


def service(history: History, window_s: float = FAIRNESS_WINDOW_S) -> Floats:
    """Return the tokens computed for each tenant in each window, float64[windows, tenants]."""
    workload = history.workload
    start_ns = int(workload.arrival_ns[0])
    window = (history.step_end_ns[history.share_step] - start_ns) / NS_PER_S // window_s
    window = window.astype(np.int64)
    tenant = workload.tenant_index[history.share_request]
    weight = np.where(history.share_tokens == 1, OUTPUT_WEIGHT, history.share_tokens)
    num_tenants = len(workload.tenants)
    num_windows = int(window.max(initial=0)) + 1
    flat = np.bincount(window * num_tenants + tenant, weight, minlength=num_windows * num_tenants)
    by_window: Floats = flat.astype(float).reshape(num_windows, num_tenants)
    return by_window


def backlogged(history: History, window_s: float = FAIRNESS_WINDOW_S) -> Mask:
    """Return which tenants have a request that waits for its start all through each window.

    bool[windows, tenants]; a window in which some moment has none waiting is no backlog.
    """
    workload = history.workload
    start_ns, num_tenants = int(workload.arrival_ns[0]), len(workload.tenants)
    last_ns = int(history.step_end_ns[-1]) if len(history.step_end_ns) else start_ns
    num_windows = int((last_ns - start_ns) / NS_PER_S // window_s) + 1
    result = np.zeros((num_windows, num_tenants), np.bool_)
    left_ns = np.where(history.first_start_ns > 0, history.first_start_ns, history.finished_ns)
    left_ns = np.where(left_ns > 0, left_ns, last_ns + 1)
    edges_ns = start_ns + np.arange(num_windows + 1) * window_s * NS_PER_S
    for tenant in range(num_tenants):
        own = workload.tenant_index == tenant
        for begin_ns, end_ns in _spans(workload.arrival_ns[own], left_ns[own]):
            first = int(np.searchsorted(edges_ns, begin_ns, side="left"))
            last = int(np.searchsorted(edges_ns, end_ns, side="right")) - 1
            result[first:last, tenant] = True
    return result


def _spans(begins: Ints, ends: Ints) -> Iterator[tuple[int, int]]:
    """Yield the union of intervals, given in the order of their begins, as separate intervals."""
    begin = end = -1
    for one_begin, one_end in zip(begins.tolist(), ends.tolist(), strict=True):
        if one_begin > end:
            if end > begin:
                yield begin, end
            begin, end = one_begin, one_end
        end = max(end, one_end)
    if end > begin:
        yield begin, end


@dataclass(frozen=True, slots=True)
class Fairness:
    """How alike tenants of equal weight fare while they compete."""

    jain_index: float  # over windows with two or more backlogged tenants, the mean
    max_difference_tokens: float  # of service between two of them in a window
    num_windows: int


def fairness(history: History, window_s: float = FAIRNESS_WINDOW_S) -> Fairness:
    """Compare the service of tenants that are backlogged through a whole window."""
    served, competing = service(history, window_s), backlogged(history, window_s)
    num_windows = min(len(served), len(competing))
    indexes, differences = [], [0.0]
    for values, mask in zip(served[:num_windows], competing[:num_windows], strict=True):
        rivals = values[mask]
        if len(rivals) > 1:
            indexes.append(jain_index(rivals))
            differences.append(float(np.ptp(rivals)))
    mean = float(np.mean(indexes)) if indexes else 1.0
    return Fairness(mean, max(differences), len(indexes))


def jain_index(values: Floats) -> float:
    """Return (Σx)² / (n·Σx²): 1 if all are equal, 1/n if one has all."""
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else 1.0


def backlog(history: History, num_points: int = NUM_BACKLOG_POINTS) -> tuple[Floats, Floats]:
    """Return times, s, over the span of arrivals, and the backlog then, prompt tokens."""
    workload = history.workload
    start_ns, end_ns = int(workload.arrival_ns[0]), int(workload.arrival_ns[-1])
    times_ns = np.linspace(start_ns, end_ns, num_points)
    arrived = _total_until(times_ns, workload.arrival_ns, workload.prompt_tokens)
    is_prompt = history.share_tokens > 1
    done_ns = history.step_end_ns[history.share_step[is_prompt]]
    computed = _total_until(times_ns, done_ns, history.share_tokens[is_prompt])
    gone = (history.reason != RejectionReason.NONE) & (history.finished_ns > 0)
    order = np.argsort(history.finished_ns[gone])
    refused = _total_until(
        times_ns, history.finished_ns[gone][order], workload.prompt_tokens[gone][order]
    )
    return (times_ns - start_ns) / NS_PER_S, arrived - computed - refused


def _total_until(times_ns: Floats, events_ns: Ints, amounts: Ints) -> Floats:
    """Return Σ amounts of the events (in order of time) up to each time."""
    totals = np.concatenate([[0.0], np.cumsum(amounts)])
    found: Floats = totals[np.searchsorted(events_ns, times_ns, side="right")]
    return found


def is_stable(history: History, warm_up: float) -> bool:
    """Tell whether the backlog does not grow: its slope over the time after the warm-up is at most
    GROWTH_TOLERANCE of the rate at which prompt tokens arrive.
    """
    times_s, tokens = backlog(history)
    if times_s[-1] <= 0:
        return True
    keep = times_s >= warm_up * times_s[-1]
    slope = float(np.polyfit(times_s[keep], tokens[keep], 1)[0])
    arriving = float(history.workload.prompt_tokens.sum()) / times_s[-1]
    return bool(slope <= GROWTH_TOLERANCE * arriving)
