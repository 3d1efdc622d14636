"""One request: its life as a line, how far it is, and why it waits. Pure."""

from collections.abc import Iterator

from dashboard.format import NOTHING, Glyphs, count, duration, meter
from dashboard.lines import Line, Tone, line
from dashboard.source.base import Record
from dashboard.tables.records import number, words
from dashboard.tables.requests import STATUS_TONES, name_of


def request(record: Record, width: int, glyphs: Glyphs) -> list[Line]:
    """Return what `show` says of one request."""
    status = words(record, "status")
    head = line(
        (f" {name_of(record)} ", Tone.TITLE),
        (status, STATUS_TONES.get(status, Tone.PLAIN)),
        (f"  {words(record, 'tenant')}, {words(record, 'traffic_class')}", Tone.PLAIN),
        (f"  number {words(record, 'request_id')}, replica {words(record, 'replica')}", Tone.FAINT),
    )
    return [
        head,
        (),
        *_timeline(record, width, glyphs),
        (),
        *_tokens(record, width, glyphs),
        (),
        *_wait(record),
    ]


def _timeline(record: Record, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """Yield the time since its arrival: first in the queue, then at work."""
    age_s, waited_s = number(record, "age_s"), number(record, "waited_s")
    parts = [
        (waited_s, glyphs.half, Tone.NOTICE),
        (max(0.0, age_s - waited_s), glyphs.full, Tone.GOOD),
    ]
    yield (
        (" life    ", Tone.FAINT),
        *meter(parts, age_s, max(10, width - 20), glyphs.empty),
        (f" {duration(age_s)}", Tone.PLAIN),
    )
    yield line(
        ("         ", Tone.FAINT),
        (f"{glyphs.half} waited {duration(waited_s)}", Tone.NOTICE),
        (f"   {glyphs.full} since its start {duration(max(0.0, age_s - waited_s))}", Tone.GOOD),
        (f"   preempted {count(number(record, 'num_preemptions'))} times", Tone.FAINT),
    )
    for name, label in (("ttft_deadline_in_ms", "first token"), ("queue_deadline_in_ms", "start")):
        if record.get(name) is not None:
            left_s = number(record, name) / 1000
            text = (
                f"{label} promised in {duration(left_s)}"
                if left_s >= 0
                else f"{label} promised {duration(-left_s)} ago"
            )
            yield line("         ", (text, Tone.PLAIN if left_s >= 0 else Tone.FAINT))


def _tokens(record: Record, width: int, glyphs: Glyphs) -> Iterator[Line]:
    prompt, output = number(record, "prompt_len"), number(record, "num_output_tokens")
    most = number(record, "max_tokens")
    bar = max(10, width - 30)
    computed = min(prompt, number(record, "num_computed_tokens"))
    cached = min(computed, number(record, "num_cached_tokens"))
    parts = [(cached, glyphs.half, Tone.SECOND), (computed - cached, glyphs.full, Tone.ACCENT)]
    yield (
        (" prompt  ", Tone.FAINT), *meter(parts, prompt, bar, glyphs.empty),
        (f" {count(computed)} of {count(prompt)}", Tone.PLAIN),
    )  # fmt: skip
    yield (
        (" output  ", Tone.FAINT),
        *meter([(output, glyphs.full, Tone.ACCENT)], most, bar, glyphs.empty),
        (f" {count(output)} of {count(most)}", Tone.PLAIN),
    )  # fmt: skip
    yield line(
        ("         ", Tone.FAINT),
        f"{count(number(record, 'num_cached_tokens'))} tokens found in the cache",
        (f", {count(number(record, 'num_blocks'))} KV blocks held", Tone.PLAIN),
    )  # fmt: skip


def _wait(record: Record) -> Iterator[Line]:
    """Yield what holds it back and by which numbers, if it waits."""
    blocked = words(record, "blocked")
    if not blocked:
        yield line((" nothing holds it back", Tone.GOOD))
        return
    start = record.get("predicted_start_in_ms")
    yield line((" it waits for: ", Tone.FAINT), (blocked, Tone.NOTICE))
    yield line(
        ("         ", Tone.FAINT),
        f"measured {number(record, 'measured'):g}, limit {number(record, 'threshold'):g}",
        (f"   place {words(record, 'place') or NOTHING} in its queue", Tone.PLAIN),
    )
    foreseen = (
        duration(number(record, "predicted_start_in_ms") / 1000)
        if start is not None
        else "not foreseen"
    )
    yield line(("         predicted start: ", Tone.FAINT), foreseen)
