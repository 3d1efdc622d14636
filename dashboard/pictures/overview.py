"""The overview: is the engine well, what does it do, whom does it serve.

Pure. Rates and times first, then load, memory by class, and as many tenants as there is room for.
"""

from collections.abc import Iterator, Sequence

from dashboard.format import (
    NOTHING,
    Glyphs,
    count,
    duration,
    measured,
    meter,
    percent,
    rate,
    sparkline,
)
from dashboard.frame import ClassFrame, Frame, Liveness
from dashboard.history import Sample, Times, View
from dashboard.lines import Line, Span, Tone, beside, fit, line
from dashboard.tables.tenants import brief_table, rows_of
from dashboard.vocabulary import PROMISE_BREAKS
from ipc.pages import ITL_BUCKETS_S, LATENCY_BUCKETS_S, STEP_BUCKETS_S, TTFT_BUCKETS_S

MAX_ALERTS = 3
LABEL = 9


def overview(
    view: View, width: int, height: int, glyphs: Glyphs, *, with_tenants: bool = True
) -> list[Line]:
    """Return the overview in `height` lines at the most."""
    left = (width - 4) // 2
    right = width - 4 - left
    lines = beside(
        _throughput(view, left, glyphs), _latencies(view, right, glyphs), left + 1, gap=2
    )
    lines += [_load(view), (), *_memory(view, width, glyphs), ()]
    found = list(alerts(view))
    lines += [line(("! ", tone), (text, tone)) for text, tone in found[:MAX_ALERTS]]
    if not with_tenants:
        return lines[:height]
    table = brief_table()
    table.show(rows_of(view))
    room = height - len(lines)
    rows = table.draw(width, room, glyphs, with_cursor=False) if room > 1 else []
    return [*lines, *rows][:height]


def _throughput(view: View, width: int, glyphs: Glyphs) -> list[Line]:
    samples = view.samples
    return [
        _trend(
            "generated", rate(view.generated), "tok/s", _series(samples, "generated"), width, glyphs
        ),
        _trend("prompts", rate(view.prompt), "tok/s", _series(samples, "prompt"), width, glyphs),
        line(
            (fit(" per second", LABEL + 2), Tone.FAINT),
            f"{rate(view.finished):>6} ",
            ("ended  ", Tone.FAINT),
            (f"{rate(view.refused):>5} ", Tone.NOTICE if view.refused else Tone.PLAIN),
            ("refused", Tone.FAINT),
        ),
    ]


def _trend(
    label: str, value: str, unit: str, series: Sequence[float | None], width: int, glyphs: Glyphs
) -> Line:
    head = line(
        (fit(f" {label}", LABEL + 2), Tone.FAINT), f"{value:>6} ", (fit(unit, 6), Tone.FAINT)
    )
    room = width - LABEL - 2 - 7 - 6
    return (*head, (sparkline(series, room, glyphs), Tone.ACCENT))


def _latencies(view: View, width: int, glyphs: Glyphs) -> list[Line]:
    samples = view.samples
    return [
        _times("TTFT", view.ttft, TTFT_BUCKETS_S, _series(samples, "ttft_p95_s"), width, glyphs),
        _times("gap", view.itl, ITL_BUCKETS_S, _series(samples, "itl_p95_s"), width, glyphs),
        _times("step", view.step, STEP_BUCKETS_S, _series(samples, "step_p50_s"), width, glyphs),
    ]


def _times(
    label: str,
    times: Times,
    bounds_s: Sequence[float],
    series: Sequence[float | None],
    width: int,
    glyphs: Glyphs,
) -> Line:
    head = line(
        (fit(label, 5), Tone.FAINT),
        f"{measured(times.p50_s, bounds_s):>6}",
        (" p95 ", Tone.FAINT),
        f"{measured(times.p95_s, bounds_s):>6} ",
    )
    return (*head, (sparkline(series, width - 23, glyphs), Tone.ACCENT))


def _series(samples: Sequence[Sample], name: str) -> list[float | None]:
    return [getattr(sample, name) for sample in samples]


def _load(view: View) -> Line:
    totals = view.frame.totals
    wait = duration(totals.oldest_wait_s) if totals.waiting else NOTHING
    return line(
        (" run ", Tone.FAINT), count(totals.running),
        ("  wait ", Tone.FAINT), count(totals.waiting),
        (" oldest ", Tone.FAINT), wait,
        ("  preempted ", Tone.FAINT), count(totals.preempted),
        ("  swapped ", Tone.FAINT), count(totals.swapped),
        *_step_budget(view),
    )  # fmt: skip


def _step_budget(view: View) -> Iterator[Span]:
    """Yield how a step compares with the tightest promised gap, and with its prediction."""
    promised = [each.itl_ms for each in view.frame.classes if each.itl_ms]
    if promised and view.step.p95_s is not None:
        used = view.step.p95_s * 1000 / min(promised)
        yield "  step ", Tone.FAINT
        yield percent(used), Tone.ALARM if used > 1 else Tone.NOTICE if used > 0.8 else Tone.PLAIN
        yield f" of {min(promised)}ms", Tone.FAINT


def _memory(view: View, width: int, glyphs: Glyphs) -> list[Line]:
    frame = view.frame
    usage = frame.held_blocks / frame.num_blocks if frame.num_blocks else None
    evictable = sum(replica.evictable_blocks for replica in frame.replicas)
    bar = max(8, min(60, width - 53))
    head: Line = (
        (fit(" KV", 15), Tone.FAINT),
        *_usage_bar(frame, bar, glyphs),
        (f" {percent(usage):>4} ", Tone.PLAIN),
        (f"{count(frame.held_blocks)} of {count(frame.num_blocks)} held", Tone.PLAIN),
        (f" {count(evictable)} reusable", Tone.FAINT),
    )
    title = (
        f"{'':15}{'':{bar}} {'HELD':>5}{'KEPT':>5}{'RUN':>5}{'WAIT':>5}{'QUEUE p50':>10}{'p95':>7}"
    )
    return [
        head,
        ((title.ljust(width), Tone.HEAD),),
        *(_class(each, view, bar, glyphs) for each in frame.classes),
    ]


def _usage_bar(frame: Frame, width: int, glyphs: Glyphs) -> Line:
    usage = frame.held_blocks / frame.num_blocks if frame.num_blocks else 0.0
    tone = Tone.NOTICE if usage > 0.9 else Tone.ACCENT
    evictable = sum(replica.evictable_blocks for replica in frame.replicas)
    parts = [(frame.held_blocks, glyphs.full, tone), (evictable, glyphs.half, Tone.SECOND)]
    return meter(parts, frame.num_blocks, width, glyphs.empty)


def _class(each: ClassFrame, view: View, bar: int, glyphs: Glyphs) -> Line:
    """Return a class: what it holds, then what is kept for it and not in use."""
    kept = max(0, each.reserved_blocks - each.held_blocks)
    parts = [(each.held_blocks, glyphs.full, Tone.ACCENT), (kept, glyphs.half, Tone.SECOND)]
    name = f" {each.name}" if not each.paused else f" {each.name[:7]} PAUSED"
    queue = view.queue.get(each.name, Times())
    is_late = bool(each.ttft_ms and queue.p95_s and queue.p95_s * 1000 > each.ttft_ms)
    return (
        (fit(name, 15), Tone.NOTICE if each.paused else Tone.PLAIN),
        *meter(parts, view.frame.num_blocks, bar, glyphs.empty),
        (f" {count(each.held_blocks):>5}", Tone.PLAIN),
        (f"{count(each.reserved_blocks) if each.reserved_blocks else NOTHING:>5}", Tone.PLAIN),
        (f"{count(each.running):>5}{count(each.waiting):>5}", Tone.PLAIN),
        (f"{measured(queue.p50_s, LATENCY_BUCKETS_S):>10}", Tone.PLAIN),
        (f"{measured(queue.p95_s, LATENCY_BUCKETS_S):>7}", Tone.NOTICE if is_late else Tone.PLAIN),
    )


def alerts(view: View) -> Iterator[Span]:
    """Yield what an operator should know at once, the worst first."""
    frame = view.frame
    for process in frame.processes:
        if process.state not in ("running", "stopped"):
            yield f"{process.child} is {process.state}, {process.restarts} restarts", Tone.ALARM
    for index, replica in enumerate(frame.replicas):
        if not replica.epoch:
            yield f"replica {index} has no executor", Tone.ALARM
    if frame.liveness is Liveness.LIVE:
        yield from _broken_promises(view)
    if frame.stopping or frame.draining:
        yield (
            ("the engine is stopping" if frame.stopping else "the engine is draining"),
            Tone.NOTICE,
        )
    paused = [each.name for each in frame.classes if each.paused]
    paused += [each.name for each in frame.tenants if each.paused]
    if paused:
        yield f"paused: {', '.join(paused[:6])}{' and more' * (len(paused) > 6)}", Tone.NOTICE


def _broken_promises(view: View) -> Iterator[Span]:
    broken = {
        name: sum(rates.refused.get(reason, 0) for reason in PROMISE_BREAKS)
        for name, rates in view.tenants.items()
    }
    hit = {name: number for name, number in broken.items() if number}
    if hit:
        worst = max(hit, key=lambda name: hit[name])
        yield (
            f"promises broken in the last 15 s: {sum(hit.values())} refused, most of {worst}",
            Tone.ALARM,
        )
