"""Who holds the KV blocks: all as a bar, the tenants that hold most, and each class. Pure."""

from collections.abc import Iterator

from dashboard.format import NOTHING, Glyphs, count, measured, meter, percent
from dashboard.frame import ClassFrame, Frame
from dashboard.history import Times, View
from dashboard.lines import Line, Span, Tone, fit
from ipc.pages import LATENCY_BUCKETS_S

LABEL = 15
NUMBERS = 38  # cells after the bar
FULL = 0.9


def memory(view: View, width: int, glyphs: Glyphs) -> list[Line]:
    """Return a bar for the engine, a line of holders, and a bar a class."""
    bar = max(8, min(72, width - LABEL - NUMBERS))
    titles = f"{'HELD':>6}{'KEPT':>5}{'RUN':>5}{'WAIT':>5}{'QUEUE p50':>10}{'p95':>7}"
    return [
        _whole(view.frame, bar, glyphs),
        (_label("  held by"), *_holders(view.frame, width - LABEL)),
        (((" " * (LABEL + bar) + titles).ljust(width), Tone.HEAD),),
        *(_class(each, view, bar, glyphs) for each in view.frame.classes),
    ]


def _whole(frame: Frame, bar: int, glyphs: Glyphs) -> Line:
    usage = frame.held_blocks / frame.num_blocks if frame.num_blocks else None
    evictable = sum(replica.evictable_blocks for replica in frame.replicas)
    tone = Tone.NOTICE if usage is not None and usage > FULL else Tone.ACCENT
    parts = [(frame.held_blocks, glyphs.full, tone), (evictable, glyphs.half, Tone.SECOND)]
    return (
        _label(" KV"),
        *meter(parts, frame.num_blocks, bar, glyphs.empty),
        (f" {percent(usage):>5}", Tone.TITLE),
        (f" {count(frame.held_blocks)} of {count(frame.num_blocks)} held", Tone.PLAIN),
        (f" {count(evictable)} reusable", Tone.FAINT),
    )


def _holders(frame: Frame, width: int) -> Iterator[Span]:
    """Yield tenants by the blocks that they hold, the most first, as many as there is room for."""
    whole = frame.num_blocks  # 0 while there is no executor: what it had is gone with it
    holders = [each for each in frame.tenants if each.held_blocks] if whole else []
    if not holders:
        yield "nobody", Tone.FAINT
    for tenant in sorted(holders, key=lambda each: -each.held_blocks):
        numbers = f"{count(tenant.held_blocks)} ({percent(tenant.held_blocks / whole)})  "
        width -= len(tenant.name) + 1 + len(numbers)
        if width < -2:  # the last one needs no gap behind it
            return
        yield f"{tenant.name} ", Tone.PLAIN
        yield numbers, Tone.FAINT


def _label(text: str) -> Span:
    return fit(text, LABEL), Tone.FAINT


def _class(each: ClassFrame, view: View, bar: int, glyphs: Glyphs) -> Line:
    """Return a class: what it holds, then what is kept for it and not in use."""
    kept = max(0, each.reserved_blocks - each.held_blocks)
    parts = [(each.held_blocks, glyphs.full, Tone.ACCENT), (kept, glyphs.half, Tone.SECOND)]
    name = f" {each.name}" if not each.paused else f" {each.name[:7]} PAUSED"
    queue = view.queue.get(each.name, Times())
    is_late = bool(each.ttft_ms and queue.p95_s and queue.p95_s * 1000 > each.ttft_ms)
    return (
        (fit(name, LABEL), Tone.NOTICE if each.paused else Tone.PLAIN),
        *meter(parts, view.frame.num_blocks, bar, glyphs.empty),
        (f"{count(each.held_blocks):>6}", Tone.PLAIN),
        (f"{count(each.reserved_blocks) if each.reserved_blocks else NOTHING:>5}", Tone.PLAIN),
        (f"{count(each.running):>5}{count(each.waiting):>5}", Tone.PLAIN),
        (f"{measured(queue.p50_s, LATENCY_BUCKETS_S):>10}", Tone.PLAIN),
        (f"{measured(queue.p95_s, LATENCY_BUCKETS_S):>7}", Tone.NOTICE if is_late else Tone.PLAIN),
    )
