"""Replicas and their executors: device, memory, steps, prediction. Pure."""

from collections.abc import Iterator

from dashboard.format import Glyphs, count, duration, meter, percent, rate, size
from dashboard.frame import ExecutorFrame, Frame, ReplicaFrame
from dashboard.history import View
from dashboard.lines import Line, Span, Tone, line
from ipc.overdue import allowed_step_s
from ipc.pages import STEP_REGIMES

FAR_OFF = 1.5  # a factor between prediction and step that is worth a look


def executors(view: View, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return a block of lines per replica: all there is to say, or as many lines of each as fit."""
    blocks = [_block(view, index, width, glyphs) for index in range(len(view.frame.replicas))]
    if not blocks:
        return [line((" no replica yet", Tone.FAINT))]
    depth = max(map(len, blocks))
    while depth > 1 and sum(len(block[:depth]) for block in blocks) > height:
        depth -= 1
    return [each for block in blocks for each in block[:depth]]


def _block(view: View, index: int, width: int, glyphs: Glyphs) -> list[Line]:
    lines = list(_replica(view, index, view.frame.replicas[index], width, glyphs))
    for executor in _executors_of(view.frame, index):
        lines += _device(executor)
    return [*lines, ()]


def _executors_of(frame: Frame, index: int) -> Iterator[ExecutorFrame]:
    return (each for each in frame.executors if each.child.startswith(f"executor.{index}."))


def _replica(
    view: View, index: int, replica: ReplicaFrame, width: int, glyphs: Glyphs
) -> Iterator[Line]:
    yield _steps(index, replica)
    yield _memory(replica, width, glyphs)
    yield line(
        ("   step ", Tone.FAINT),
        f"p50 {duration(view.step.p50_s)} p95 {duration(view.step.p95_s)}  {rate(view.steps)}/s",
        *_infeasible(replica),
    )
    if any(replica.cost_factors):
        yield line(
            ("   steps against what was predicted: ", Tone.FAINT), *_prediction(replica, glyphs)
        )


def _steps(index: int, replica: ReplicaFrame) -> Line:
    age_s = replica.last_step_age_s
    allowed_s = allowed_step_s(replica.expected_step_s)
    is_slow = bool(replica.running and age_s is not None and age_s > allowed_s)
    return line(
        (f" replica {index} ", Tone.TITLE), _state(replica),
        (" epoch ", Tone.FAINT), str(replica.epoch),
        ("  running ", Tone.FAINT), count(replica.running),
        ("  steps ", Tone.FAINT), count(replica.step),
        (" last ", Tone.FAINT),
        (f"{duration(age_s)} ago", Tone.ALARM if is_slow else Tone.PLAIN),
        ("  in flight ", Tone.FAINT), duration(replica.plan_age_s),
    )  # fmt: skip


def _state(replica: ReplicaFrame) -> Span:
    if not replica.epoch:
        return "NO EXECUTOR", Tone.ALARM
    return ("draining", Tone.NOTICE) if replica.draining else ("up", Tone.GOOD)


def _memory(replica: ReplicaFrame, width: int, glyphs: Glyphs) -> Line:
    held, evictable, whole = replica.held_blocks, replica.evictable_blocks, replica.num_blocks
    usage = held / whole if whole else None
    parts = [(held, glyphs.full, Tone.ACCENT), (evictable, glyphs.half, Tone.SECOND)]
    return (
        ("   KV   ", Tone.FAINT),
        *meter(parts, whole, max(8, min(40, width - 62)), glyphs.empty),
        (f" {percent(usage)} held {count(held)} of {count(whole)}", Tone.PLAIN),
        (f" reusable {count(evictable)}", Tone.FAINT),
        *_host(replica),
    )


def _infeasible(replica: ReplicaFrame) -> Iterator[Span]:
    if replica.infeasible_steps:
        yield f"  {count(replica.infeasible_steps)} had to break a promised gap", Tone.NOTICE


def _host(replica: ReplicaFrame) -> Iterator[Span]:
    if replica.fenced_blocks:
        yield f" fenced {count(replica.fenced_blocks)}", Tone.FAINT
    if replica.host_blocks:
        yield f" host {count(replica.held_host_blocks)} of {count(replica.host_blocks)}", Tone.PLAIN


def _prediction(replica: ReplicaFrame, glyphs: Glyphs) -> Iterator[Span]:
    """Yield by which factor steps differ from what was measured at the start, and their scatter."""
    for regime, factor, sigma in zip(
        STEP_REGIMES, replica.cost_factors, replica.cost_sigmas, strict=True
    ):
        scatter = f"{glyphs.plus_minus}{sigma * 100:.0f}%"
        tone = Tone.NOTICE if factor > FAR_OFF else Tone.PLAIN
        yield f"{regime} {glyphs.times}{factor:.2f} {scatter}   ", tone


def _device(executor: ExecutorFrame) -> Iterator[Line]:
    name = executor.device_name or "device unknown"
    device = f"{name}, {executor.threads} threads, {executor.kernel_path}"
    yield line(
        (f"   {executor.child} ", Tone.FAINT), device, ("  model ", Tone.FAINT), executor.model
    )
    yield line(
        ("   weights ", Tone.FAINT), size(executor.weights_bytes),
        ("  KV ", Tone.FAINT), size(executor.kv_bytes),
        ("  block ", Tone.FAINT), size(executor.block_bytes),
        ("  steps ", Tone.FAINT), count(executor.steps),
        ("  tokens ", Tone.FAINT), count(executor.tokens),
    )  # fmt: skip
