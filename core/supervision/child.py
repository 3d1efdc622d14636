"""One child of the supervision tree, and what the engine can do without.

Owns: where a child stands, and which executors are those of a replica that others stand in for.
Never knows: what is done about it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from core.supervision.restarts import RestartBudget
from core.supervision.spec import ChildKind, ChildSpec
from core.supervision.states import TRANSITIONS, ProcessState


@dataclass(slots=True)
class Child:
    """One child: its specification and where it stands. `restarts` counts all, asked for or not."""

    spec: ChildSpec
    budget: RestartBudget
    state: ProcessState = ProcessState.STOPPED
    epoch: int = 0
    restarts: int = 0
    started_ns: int = 0
    due_ns: int | None = None  # BACKOFF: when to start; an ending process: when to kill
    killed: bool = False
    asked_to_restart: bool = False
    has_served: bool = False  # some instance of it

    def move_to(self, state: ProcessState) -> None:
        """Change the state along TRANSITIONS; anything else is a bug."""
        assert state in TRANSITIONS[self.state], (self.spec.id, self.state.name, state.name)
        self.state = state


def has_other_replica(child: Child, children: Iterable[Child]) -> bool:
    """Tell whether `child` is an executor, and one of another replica is not given up."""
    return child.spec.kind is ChildKind.EXECUTOR and any(
        other.spec.kind is ChildKind.EXECUTOR
        and other.spec.group != child.spec.group
        and other.state is not ProcessState.GIVEN_UP
        for other in children
    )


def is_waited_for(child: Child, children: Collection[Child]) -> bool:
    """Tell whether the engine is not ready without `child`.

    Nobody waits for a replica that has failed to load while another one serves.
    """
    if child.spec.kind is not ChildKind.EXECUTOR or not _has_failed(child, children):
        return True
    executors = [each for each in children if each.spec.kind is ChildKind.EXECUTOR]
    down = {each.spec.group for each in executors if each.state is not ProcessState.RUNNING}
    return {each.spec.group for each in executors} <= down


def _has_failed(child: Child, children: Iterable[Child]) -> bool:
    """Tell whether it is given up, or its group has died before it ever served."""
    group = (each for each in children if each.spec.group == child.spec.group)
    return child.state is ProcessState.GIVEN_UP or any(
        each.restarts and not each.has_served for each in group
    )
