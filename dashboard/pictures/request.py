"""One request: its life as a line, how far it is, what happened to it, and why it waits. Pure."""

from collections.abc import Iterator

from dashboard.format import NOTHING, Glyphs, count, counted, duration, meter
from dashboard.lines import Line, Span, Tone, crop, line
from dashboard.source.base import Record
from dashboard.tables.records import number, words
from dashboard.tables.requests import STATUS_TONES, name_of
from dashboard.waits import numbers_of, reason_of

MAX_MOMENTS = 8
BRIEF_HEIGHT = 5


def request(record: Record, width: int, glyphs: Glyphs) -> list[Line]:
    """Return all that `show` says of one request."""
    return [
        _head(record),
        (),
        *_wait(record),
        *_promises(record),
        (),
        *_life(record, width, glyphs),
        *_tokens(record, width, glyphs),
        (),
        *_timeline(record),
    ]


def brief(record: Record | None, width: int, *, is_whole: bool) -> list[Line]:
    """Return in BRIEF_HEIGHT lines who it is, why it waits, what helps and what was promised; of a
    record that is not whole, a row of the list, only who it is.
    """
    if record is None:
        return [((" no request".ljust(width), Tone.HEAD),), *[()] * (BRIEF_HEIGHT - 1)]
    title = f" {name_of(record)}  {words(record, 'tenant')}, {words(record, 'traffic_class')}"
    lines: list[Line] = [((title.ljust(width), Tone.HEAD),)]
    lines += [*_wait(record), *_promises(record)] if is_whole else []
    return [crop(each, width) for each in [*lines, *[()] * BRIEF_HEIGHT][:BRIEF_HEIGHT]]


def _head(record: Record) -> Line:
    status, replica = words(record, "status"), words(record, "replica") or NOTHING
    return line(
        (f" {name_of(record)} ", Tone.TITLE),
        (status, STATUS_TONES.get(status, Tone.PLAIN)),
        (f"  {words(record, 'tenant')}, {words(record, 'traffic_class')}", Tone.PLAIN),
        (f"  number {words(record, 'request_id')}, replica {replica}", Tone.FAINT),
    )


def _wait(record: Record) -> Iterator[Line]:
    """Yield what holds it back and by which numbers, if it waits."""
    blocked = words(record, "blocked")
    if not blocked:
        yield line((" nothing holds it back: ", Tone.GOOD), *_progress(record))
        return
    reason = reason_of(record)
    numbers = numbers_of(record)
    yield line((f" waits for {blocked}: ", Tone.NOTICE), reason.sentence)
    yield line(
        " ", f"{numbers}   " if numbers else "",
        ("start ", Tone.FAINT), *_expected(record),
        (f"   {count(number(record, 'place'))} before it", Tone.PLAIN),
        ("   here for ", Tone.FAINT), duration(number(record, "age_s")),
    )  # fmt: skip
    if reason.helps:
        yield line((" what helps: ", Tone.FAINT), reason.helps)


def _progress(record: Record) -> Iterator[Span]:
    done, most = number(record, "num_output_tokens"), number(record, "max_tokens")
    yield f"{count(done)} of {count(most)} tokens, ", Tone.PLAIN
    yield f"{count(number(record, 'num_blocks'))} KV blocks", Tone.PLAIN


def _expected(record: Record) -> Iterator[Span]:
    if record.get("predicted_start_in_ms") is None:
        yield "not foreseen", Tone.PLAIN
    else:
        ends = ("soonest_start_in_ms", "latest_start_in_ms")
        told = ends if record.get(ends[-1]) is not None else ("predicted_start_in_ms",)
        times = [duration(number(record, key) / 1000) for key in told]
        yield f"in {' to '.join(times)}", Tone.PLAIN
        if record.get("is_doubtful"):
            yield ", or refused", Tone.NOTICE


def _promises(record: Record) -> Iterator[Line]:
    """Yield what was promised and is still to come, and until when it may wait for its start."""
    told: list[Span] = []
    if record.get("ttft_deadline_in_ms") is not None:
        told.append(_first_token(record, number(record, "ttft_deadline_in_ms") / 1000))
    if record.get("queue_deadline_in_ms") is not None and words(record, "status") == "waiting":
        left_s = max(0.0, number(record, "queue_deadline_in_ms") / 1000)
        told.append((f" refused unless it starts in {duration(left_s)} ", Tone.PLAIN))
    yield tuple(told) or line((" nothing is promised to it", Tone.FAINT))


def _first_token(record: Record, left_s: float) -> Span:
    if number(record, "num_output_tokens"):
        return " its first token has come ", Tone.FAINT
    if left_s >= 0:
        return f" first token promised in {duration(left_s)} ", Tone.PLAIN
    return f" first token was promised {duration(-left_s)} ago ", Tone.FAINT


def _life(record: Record, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """Yield the time since its arrival: first in the queue, then at work."""
    age_s, waited_s = number(record, "age_s"), number(record, "waited_s")
    worked_s = max(0.0, age_s - waited_s)
    parts = [(waited_s, glyphs.half, Tone.NOTICE), (worked_s, glyphs.full, Tone.GOOD)]
    yield (
        (" life    ", Tone.FAINT),
        *meter(parts, age_s, max(10, width - 30), glyphs.empty),
        (f" {duration(age_s)}", Tone.PLAIN),
    )
    yield line(
        "         ",
        (f"{glyphs.half} waited {duration(waited_s)}", Tone.NOTICE),
        (f"   {glyphs.full} since its start {duration(worked_s)}", Tone.GOOD),
        (f"   preempted {counted(int(number(record, 'num_preemptions')), 'time')}", Tone.FAINT),
    )


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
        "         ",
        f"{count(number(record, 'num_cached_tokens'))} tokens found in the cache",
        f", {count(number(record, 'num_blocks'))} KV blocks held",
    )


def _timeline(record: Record) -> Iterator[Line]:
    """Yield the last things that happened to it, oldest first, if the engine tells."""
    moments = record.get("timeline")
    told = [each for each in moments if isinstance(each, dict)] if isinstance(moments, list) else []
    if len(told) > MAX_MOMENTS:
        yield line((f" {len(told) - MAX_MOMENTS} earlier things", Tone.FAINT))
    for moment in told[-MAX_MOMENTS:]:
        yield line(
            (f" {duration(number(moment, 'age_s')):>7} ago  ", Tone.FAINT),
            f"{words(moment, 'what'):12}",
            (words(moment, "reason"), Tone.FAINT),
        )
