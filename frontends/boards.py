"""What a frontend sees of the engine: every board page and heartbeat of one moment.

Plain data between those who read shared memory and those who render it (metrics, health, `status`).
Never knows: where the pages lie or who asks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.supervision.states import ProcessState
from ipc.heartbeat import Heartbeat
from ipc.pages import (
    ADMIN_PAGE,
    EXECUTOR_PAGE,
    HTTP_PAGE,
    SCHEDULER_PAGE,
    SUPERVISOR_PAGE,
    TOKENIZER_PAGE,
)

LAYOUTS: Mapping[str, np.dtype[np.void]] = {
    "supervisor": SUPERVISOR_PAGE,
    "scheduler": SCHEDULER_PAGE,
    "executor": EXECUTOR_PAGE,
    "tokenizer": TOKENIZER_PAGE,
    "http": HTTP_PAGE,
    "admin": ADMIN_PAGE,
}
"""Layout of a child's page, by the first word of its id."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page as its process wrote it last; `record` is a scalar of its layout."""

    epoch: int
    written_ns: int
    record: np.void = field(repr=False)


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A child as the supervisor sees it; `state` is a `ProcessState`, `fault` why it does not
    serve.
    """

    id: str
    pid: int
    epoch: int
    state: int
    restarts: int
    fault: str

    @property
    def is_given_up(self) -> bool:
        """True if the supervisor does not start it any more."""
        return self.state == ProcessState.GIVEN_UP


CHILD_FIELDS = ("name", "pid", "epoch", "state", "restarts", "fault")


@dataclass(frozen=True)
class Boards:
    """All pages and heartbeats of one engine at `taken_ns` (CLOCK_MONOTONIC), by child id.

    A page that was never written, or cannot be read intact, is missing.
    """

    taken_ns: int
    pages: Mapping[str, Page] = field(default_factory=dict)
    heartbeats: Mapping[str, Heartbeat] = field(default_factory=dict)

    @cached_property
    def children(self) -> tuple[ChildRow, ...]:
        """What the supervisor's page says of each child."""
        supervisor = self.record("supervisor")
        rows = supervisor["children"][: int(supervisor["num_children"])]
        return tuple(
            ChildRow(text_of(name), pid, epoch, state, restarts, text_of(fault))
            for name, pid, epoch, state, restarts, fault in values_of(rows, CHILD_FIELDS)
        )

    def of_kind(self, kind: str) -> list[tuple[str, Page]]:
        """Return the pages of one kind of process (`http`, `executor`, …), ordered by child id."""
        return [(c, self.pages[c]) for c in sorted(self.pages) if kind_of(c) == kind]

    def record(self, kind: str) -> np.void:
        """Return the page of a process of which there is one, or the first of its kind; all zeros
        if there is none.
        """
        page = self.pages.get(kind) or next((page for _, page in self.of_kind(kind)), None)
        if page is not None:
            return page.record
        blank: np.void = np.zeros(1, LAYOUTS[kind])[0]
        return blank

    def age_s(self, stamp_ns: int) -> float:
        """Return how old a CLOCK_MONOTONIC stamp is, seconds, never negative."""
        return max(0, self.taken_ns - stamp_ns) / NS_PER_S


def kind_of(child: str) -> str:
    """Return the kind of a child id: `executor.0.0` is an `executor`."""
    return child.partition(".")[0]


def values_of(rows: npt.NDArray[np.void], fields: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield these fields of each row as Python's own values. A column at a time takes a fraction
    of the time that numpy's scalars do.
    """
    return zip(*(rows[name].tolist() for name in fields), strict=True)


def text_of(value: bytes) -> str:
    """Return a fixed-width text field of a page; damaged bytes are shown as such."""
    return value.decode("utf-8", "backslashreplace")
