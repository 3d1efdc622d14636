"""Which processes have given no sign of life for longer than their work explains, from the board.

Owns: what of the pages and heartbeats tells that; how long is too long says `ipc.overdue`. What the
scheduler says of an executor's plan counts as of when it was written, so that a scheduler that is
silent accuses nobody else. Never knows: what is done about it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from core.clock import NS_PER_S
from core.supervision.states import ProcessState
from frontends.boards import Boards, kind_of
from ipc.overdue import overdue_s


@dataclass(frozen=True, slots=True)
class Sign:
    """A running process: `overdue_s` is for how long it has given no sign, 0 = it is well, and
    `expected_s` how long its step should take, 0 = nobody knows.
    """

    process: str
    overdue_s: float
    expected_s: float


def signs(boards: Boards) -> Iterator[Sign]:
    """Yield what is known of each process that runs."""
    for child in boards.children:
        beat = boards.heartbeats.get(child.id)
        if beat is None or child.state != ProcessState.RUNNING:
            continue
        plan_age_s, expected_s = plan_of(boards, child.id)
        silent_s = boards.age_s(beat.stamp_ns)
        late_s = overdue_s(beat.state.name.lower(), silent_s, plan_age_s, expected_s)
        yield Sign(child.id, late_s, expected_s)


def plan_of(boards: Boards, child: str) -> tuple[float, float]:
    """Return the age of the oldest plan that an executor has not answered, and how long its step
    should take, s; zeros if it has none, or is no executor.
    """
    page = boards.pages.get("scheduler")
    if page is None or kind_of(child) != "executor":
        return 0.0, 0.0
    replica = int(child.split(".")[1])
    if replica >= int(page.record["num_replicas"]):
        return 0.0, 0.0
    row = page.record["replicas"][replica]
    sent_ns = int(row["plan_sent_ns"])
    age_ns = max(0, page.written_ns - sent_ns) if sent_ns else 0
    return age_ns / NS_PER_S, int(row["expected_step_ns"]) / NS_PER_S
