"""Promises: what each class was promised, how starts compare with it, and what it costs. Pure.

"Missed" are promised first tokens that came late or never, as the engine counts them. "In time" is
the share of requests that had started within the promised time to the first token; it is counted by
whole buckets of their waits, so rather too few.
"""

from collections.abc import Callable, Iterator, Mapping

from dashboard.format import NOTHING, count, measured, milliseconds, percent, zero_is_nothing
from dashboard.frame import ClassFrame
from dashboard.history import Times, View
from dashboard.lines import Line, Span, Tone, line
from dashboard.quantiles import share_within
from dashboard.vocabulary import PROMISE_BREAKS
from ipc.pages import ITL_BUCKETS_S, LATENCY_BUCKETS_S

GOOD_SHARE = 0.95
MAX_REASONS = 4


def promises(view: View, width: int) -> list[Line]:
    """Return classes and prices."""
    head = f" {'CLASS':15}{'FIRST':>7}{'GAP':>7}{'STARTED':>8}{'IN TIME':>8}{'MISSED':>7}"
    head += f"{'WAIT p50':>9}{'p95':>7}{'KEPT KV':>8}"
    return [
        ((head.ljust(width), Tone.HEAD),),
        *(_class(each, view) for each in view.frame.classes),
        *_gaps(view),
        (),
        *_price(view, width),
        (),
    ]


def _class(each: ClassFrame, view: View) -> Line:
    started = sum(each.queue_time.counts)
    share = share_within(each.queue_time, LATENCY_BUCKETS_S, each.ttft_ms / 1000)
    queue = view.queue.get(each.name, Times())
    in_time: Span = (f"{NOTHING:>8}", Tone.FAINT)
    if each.ttft_ms and share is not None:
        in_time = (f"{percent(share):>8}", Tone.GOOD if share >= GOOD_SHARE else Tone.ALARM)
    missed = f"{zero_is_nothing(each.deadline_misses):>7}"
    return line(
        f" {each.name:15}",
        f"{promised(each.ttft_ms):>7}{promised(each.itl_ms):>7}{count(started):>8}",
        in_time,
        (missed, Tone.NOTICE if each.deadline_misses else Tone.FAINT),
        f"{queued(queue.p50_s):>9}{queued(queue.p95_s):>7}",
        f"{count(each.reserved_blocks) if each.reserved_blocks else NOTHING:>8}",
    )


def queued(seconds: float | None) -> str:
    """Return a quantile of times in the queue."""
    return measured(seconds, LATENCY_BUCKETS_S)


def gap(seconds: float | None) -> str:
    """Return a quantile of gaps between tokens."""
    return measured(seconds, ITL_BUCKETS_S)


def promised(promise_ms: int) -> str:
    """Return a promise; 0 is none."""
    return milliseconds(promise_ms) if promise_ms else NOTHING


def _gaps(view: View) -> Iterator[Line]:
    """Yield how the gaps between tokens, which are known for all together only, compare."""
    broken = sum(replica.infeasible_steps for replica in view.frame.replicas)
    yield line(
        (" gaps, all classes: p50 ", Tone.FAINT), gap(view.itl.p50_s),
        (" p95 ", Tone.FAINT), gap(view.itl.p95_s),
        ("   steps that had to break one: ", Tone.FAINT),
        (count(broken), Tone.ALARM if broken else Tone.PLAIN),
    )  # fmt: skip


def _price(view: View, width: int) -> Iterator[Line]:
    totals = view.frame.totals
    computed = totals.prompt_tokens + totals.generated_tokens
    computed += totals.recomputed_tokens - totals.cached_tokens
    whole = max(1, computed + sum(totals.leftovers.values()))
    yield ((" WHAT IT COSTS, since the engine's start".ljust(width), Tone.HEAD),)
    yield line((" computed      ", Tone.FAINT), f"{count(computed)} tokens")
    yield line(
        (" left unused   ", Tone.FAINT),
        *_listed(totals.leftovers, lambda n: f"{count(n)} ({percent(n / whole)})"),
    )
    yield line(
        (" done again    ", Tone.FAINT), f"{count(totals.recomputed_tokens)} tokens",
        ("   swapped out ", Tone.FAINT), f"{count(totals.swapped_out_tokens)} tokens",
    )  # fmt: skip
    yield line((" preemptions   ", Tone.FAINT), *_listed(totals.preemptions_by, count))
    broken = {k: n for k, n in totals.rejections.items() if k in PROMISE_BREAKS}
    other = {k: n for k, n in totals.rejections.items() if k not in PROMISE_BREAKS}
    yield line(
        (" broken        ", Tone.FAINT),
        *((text, Tone.ALARM if broken else tone) for text, tone in _listed(broken, count)),
    )
    yield line((" refused       ", Tone.FAINT), *_listed(other, count))


def _listed(counts: Mapping[str, int], show: Callable[[float], str]) -> Iterator[Span]:
    largest = sorted(counts.items(), key=lambda item: -item[1])
    if not largest:
        yield "none", Tone.FAINT
    for index, (name, number) in enumerate(largest[:MAX_REASONS]):
        yield f"{', ' * bool(index)}{name} {show(number)}", Tone.PLAIN
    if len(largest) > MAX_REASONS:
        yield f", {len(largest) - MAX_REASONS} more", Tone.FAINT
