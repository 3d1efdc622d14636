"""What an operator should know at once, in words, the worst first. Pure."""

from collections.abc import Iterator

from dashboard.format import count, counted, duration, percent
from dashboard.frame import Frame, Liveness, ProcessFrame, TenantFrame
from dashboard.history import View
from dashboard.lines import Span, Tone
from dashboard.silence import replica_of, silent_too_long_s
from dashboard.tables.tenants import FAIRNESS_GAP
from dashboard.vocabulary import PROMISE_BREAKS
from ipc.overdue import IN_A_STEP

MAX_NAMES = 3


def alerts(view: View) -> list[Span]:
    """Return them; a frame that is not of now says only what is down."""
    frame = view.frame
    found = [*_down(frame)]
    if frame.liveness is Liveness.LIVE:
        found += [*_hung(frame), *_broken_promises(view), *_unfair(frame), *_preempted(view)]
    return [*found, *_chosen(frame)]


def _down(frame: Frame) -> Iterator[Span]:
    for process in frame.processes:
        if process.state not in ("running", "stopped"):
            words = f"{process.child} is {process.state}, {counted(process.restarts, 'restart')}"
            yield f"{words}: {process.fault}" if process.fault else words, Tone.ALARM
    for index, replica in enumerate(frame.replicas):
        if not replica.epoch:
            yield f"replica {index} has no executor", Tone.ALARM


def _hung(frame: Frame) -> Iterator[Span]:
    for process in frame.processes:
        silent_s = silent_too_long_s(process, frame)
        if silent_s:
            yield hung_words(process, frame, silent_s), Tone.ALARM


def hung_words(process: ProcessFrame, frame: Frame, silent_s: float) -> str:
    """Return for how long a process has been silent, and what will be done about it."""
    words = f"{process.child} HUNG? {_sign_missed(process, silent_s)} for {duration(silent_s)}"
    replica = replica_of(process, frame)
    if process.activity == IN_A_STEP and replica is not None and replica.expected_step_s:
        words += f", expected {duration(replica.expected_step_s)}"
    return (
        words
        if process.patience_s is None
        else f"{words}; killed in {duration(process.patience_s)}"
    )


def _sign_missed(process: ProcessFrame, silent_s: float) -> str:
    if process.activity == IN_A_STEP:
        return "in one step"
    return "no heartbeat" if process.heartbeat_age_s == silent_s else "no answer to its plan"


def _broken_promises(view: View) -> Iterator[Span]:
    broken = {
        name: sum(rates.refused.get(reason, 0) for reason in PROMISE_BREAKS)
        for name, rates in view.tenants.items()
        if rates.refused
    }
    hit = {name: number for name, number in broken.items() if number}
    if hit:
        worst = max(hit, key=lambda name: hit[name])
        number = sum(hit.values())
        yield f"{counted(number, 'promise')} broken in 15 s, most to {worst}", Tone.ALARM


def _unfair(frame: Frame) -> Iterator[Span]:
    """Yield who had much more than its share while somebody waited for the rest of his own."""
    gaps = {each.name: each.share_used - each.share_due for each in frame.tenants}
    short = [each for each in frame.tenants if each.waiting and gaps[each.name] < -FAIRNESS_GAP]
    over = [each for each in frame.tenants if gaps[each.name] > FAIRNESS_GAP]
    if short and over:
        over.sort(key=lambda each: -gaps[each.name])
        short.sort(key=lambda each: gaps[each.name])
        yield f"over share: {_shares(over)}; short: {_shares(short)}", Tone.NOTICE


def _shares(tenants: list[TenantFrame]) -> str:
    told = [
        f"{each.name} {percent(each.share_used)} of {percent(each.share_due)} due"
        for each in tenants[:MAX_NAMES]
    ]
    return ", ".join(told) + (" and more" if len(tenants) > MAX_NAMES else "")


def _preempted(view: View) -> Iterator[Span]:
    times = {name: rates.preempted for name, rates in view.tenants.items() if rates.preempted}
    if times:
        most = sorted(times, key=lambda name: -times[name])[:MAX_NAMES]
        who = ", ".join(f"{name} {count(times[name])}" for name in most)
        why = ", ".join(view.preempted_by) or "memory"
        yield f"preempted in the last 15 s: {who} ({why})", Tone.NOTICE


def _chosen(frame: Frame) -> Iterator[Span]:
    """Yield what an operator has done, and may have forgotten."""
    if frame.stopping or frame.draining:
        yield f"the engine is {'stopping' if frame.stopping else 'draining'}", Tone.NOTICE
    paused = [each.name for each in frame.classes if each.paused]
    paused += [each.name for each in frame.tenants if each.paused]
    if paused:
        yield f"paused: {', '.join(paused[:6])}{' and more' * (len(paused) > 6)}", Tone.NOTICE
