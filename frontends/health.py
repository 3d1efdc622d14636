"""Three different questions about health, answered from the board: live, ready, progress.

    live      the supervisor's loop stamps, and no child was given up without which it cannot go on
    ready     new requests are admitted: nothing drains or stops, each kind of process has one that
              serves
    progress  steps happen while there is work; false when there is and the last is too old

Beside them `complete`: no replica was given up. The others serve, so nobody who asks whether to
restart or to send requests is told no.

Owns: the verdicts. Never knows: HTTP, or where pages lie. A stopped scheduler leaves its page as it
was, so every age here is measured from stamps on the page to now, never taken from the page as a
duration.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from core.clock import NS_PER_MS, NS_PER_S
from core.config.processes import SupervisionConfig
from core.supervision.states import ProcessState
from frontends.boards import Boards, ChildRow, kind_of
from ipc.heartbeat import Heartbeat, HeartbeatState

SERVING_KINDS = ("scheduler", "tokenizer", "http")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer; `reasons` is empty exactly if it is ok."""

    reasons: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing speaks against it."""
        return not self.reasons

    def as_dict(self) -> dict[str, object]:
        """Return the verdict as JSON-like data."""
        return {"ok": self.ok, "reasons": list(self.reasons)}


@dataclass(frozen=True, slots=True)
class Health:
    """All verdicts of one moment."""

    live: Verdict
    ready: Verdict
    progress: Verdict
    complete: Verdict

    @property
    def overall(self) -> Verdict:
        """What `/health` says: the three by which others act."""
        return Verdict((*self.live.reasons, *self.ready.reasons, *self.progress.reasons))

    def as_dict(self) -> dict[str, object]:
        """Return the verdicts as JSON-like data."""
        return {
            "live": self.live.as_dict(),
            "ready": self.ready.as_dict(),
            "progress": self.progress.as_dict(),
            "complete": self.complete.as_dict(),
        }


def assess(boards: Boards, limits: SupervisionConfig) -> Health:
    """Return the verdicts on an engine."""
    return Health(
        live=Verdict(tuple(live_faults(boards, limits))),
        ready=Verdict(tuple(ready_faults(boards, limits))),
        progress=Verdict(tuple(progress_faults(boards, limits))),
        complete=Verdict(tuple(map(given_up_words, dispensed_with(boards)))),
    )


def live_faults(boards: Boards, limits: SupervisionConfig) -> Iterator[str]:
    """Yield what speaks against liveness."""
    beat = boards.heartbeats.get("supervisor")
    if beat is None or beat.state is HeartbeatState.OFF:
        yield "the supervisor has not started"
    elif is_silent(boards, beat, limits):
        yield f"supervisor: silent for {boards.age_s(beat.stamp_ns):.1f} s"
    dispensed = dispensed_with(boards)
    for child in boards.children:
        if child.is_given_up and child not in dispensed:
            yield given_up_words(child)


def dispensed_with(boards: Boards) -> list[ChildRow]:
    """Return the executors that were given up, as long as there is a replica without any."""
    executors = [child for child in boards.children if kind_of(child.id) == "executor"]
    given_up = [child for child in executors if child.is_given_up]
    lost, replicas = ({child.id.split(".")[1] for child in each} for each in (given_up, executors))
    return given_up if lost != replicas else []


def given_up_words(child: ChildRow) -> str:
    """Return that a child stays down, and why."""
    return f"{child.id}: given up: {child.fault or 'too many restarts'}"


def ready_faults(boards: Boards, limits: SupervisionConfig) -> Iterator[str]:
    """Yield what speaks against readiness."""
    scheduler = boards.record("scheduler")
    if boards.record("supervisor")["stopping"]:
        yield "the engine is stopping"
    if scheduler["draining"]:
        yield "the engine is draining"
    elif not scheduler["ready"]:
        yield "the scheduler does not admit yet"
    replicas = scheduler["replicas"][: int(scheduler["num_replicas"])]
    if not any(row["epoch"] and not row["draining"] for row in replicas):
        yield "no replica takes work"
    for kind in SERVING_KINDS:
        yield from kind_faults(boards, kind, limits)


def kind_faults(boards: Boards, kind: str, limits: SupervisionConfig) -> Iterator[str]:
    """Yield a fault unless one process of `kind` serves and its loop stamps."""
    serving = [
        boards.heartbeats[child.id]
        for child in boards.children
        if kind_of(child.id) == kind and is_serving(boards, child)
    ]
    if not serving:
        yield f"{kind}: none serves"
    elif all(is_silent(boards, beat, limits) for beat in serving):
        newest_ns = max(beat.stamp_ns for beat in serving)
        yield f"{kind}: silent for {boards.age_s(newest_ns):.1f} s"


def progress_faults(boards: Boards, limits: SupervisionConfig) -> Iterator[str]:
    """Yield what speaks against progress."""
    page = boards.pages.get("scheduler")
    if page is None:
        return
    scheduler, limit_s = page.record, limits.progress_limit_ms / 1000
    for index, row in enumerate(scheduler["replicas"][: int(scheduler["num_replicas"])]):
        yield from replica_faults(boards, index, row, limit_s)
    waited_s, step_age_s = oldest_wait_s(boards), last_step_age_s(boards)
    if waited_s > limit_s and step_age_s > limit_s:
        since = "yet" if math.isinf(step_age_s) else f"for {step_age_s:.1f} s"
        yield f"a request has waited for {waited_s:.1f} s and no step has ended {since}"


def replica_faults(boards: Boards, index: int, row: np.void, limit_s: float) -> Iterator[str]:
    """Yield a fault if a replica has work and has neither ended a step nor been given one
    lately."""
    if not row["num_running"] and not row["plan_sent_ns"]:
        return
    since_ns = int(row["plan_sent_ns"]) or int(row["last_step_ns"])
    if since_ns and boards.age_s(since_ns) > limit_s:
        yield (
            f"replica {index}: {int(row['num_running'])} running and no step has ended"
            f" for {boards.age_s(since_ns):.1f} s"
        )


def last_step_age_s(boards: Boards) -> float:
    """Return the time since any replica ended a step, seconds; infinite before the first."""
    scheduler = boards.record("scheduler")
    rows = scheduler["replicas"][: int(scheduler["num_replicas"])]
    last_ns = max((int(row["last_step_ns"]) for row in rows), default=0)
    return boards.age_s(last_ns) if last_ns else float("inf")


def oldest_wait_s(boards: Boards) -> float:
    """Return how long the oldest queued request has waited until now, seconds; 0 = none waits."""
    page = boards.pages.get("scheduler")
    if page is None or not page.record["oldest_wait_ns"]:
        return 0.0
    return int(page.record["oldest_wait_ns"]) / NS_PER_S + boards.age_s(page.written_ns)


def is_silent(boards: Boards, beat: Heartbeat, limits: SupervisionConfig) -> bool:
    """Tell whether a loop has stamped neither within the hang limit nor within what it promised."""
    quiet_until_ns = max(beat.stamp_ns + limits.hang_timeout_ms * NS_PER_MS, beat.busy_until_ns)
    return boards.taken_ns > quiet_until_ns


def is_serving(boards: Boards, child: ChildRow) -> bool:
    """Tell whether the instance that was started last runs and has taken up its work."""
    beat = boards.heartbeats.get(child.id)
    return (
        beat is not None
        and beat.epoch == child.epoch
        and child.state in (ProcessState.STARTING, ProcessState.RUNNING)
    )
