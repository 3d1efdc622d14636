"""Board pages made by hand: an engine as it would look, without any process."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.clock import NS_PER_S
from core.errors import RejectionReason
from core.supervision.states import ProcessState
from frontends.boards import LAYOUTS, Boards, Page, kind_of
from ipc.heartbeat import Heartbeat, HeartbeatState
from ipc.pages import MAX_REJECTION_REASONS

NOW_NS = 1_000 * NS_PER_S
CHILDREN = ("admin.0", "admin.1", "executor.0.0", "scheduler", "tokenizer.0", "http.0")

Fields = Mapping[str, Any]


def page(child: str, fields: Fields | None = None, epoch: int = 1) -> Page:
    """Return a page with some fields set; nested ones by a mapping or, for rows, a list of them."""
    record = np.zeros(1, LAYOUTS[kind_of(child)])
    fill(record[0], fields or {})
    return Page(epoch, NOW_NS, record[0])


def fill(record: Any, fields: Fields) -> None:
    """Set fields of a record in place."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            fill(record[name], value)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for index, row in enumerate(value):
                fill(record[name][index], row)
        else:
            record[name] = value


def child_row(child: str, **fields: Any) -> Fields:
    """Return a row of the supervisor's page: running, first epoch."""
    row = {"name": child.encode(), "pid": 100, "epoch": 1, "state": ProcessState.RUNNING}
    return row | fields


def supervisor_fields(children: list[Fields] | None = None, **fields: Any) -> Fields:
    """Return the supervisor's page of an engine that started 100 s ago."""
    rows = [child_row(child) for child in CHILDREN] if children is None else children
    base = {"started_ns": NOW_NS - 100 * NS_PER_S, "num_children": len(rows), "children": rows}
    return base | fields


def replica_fields(**fields: Any) -> Fields:
    """Return a replica that is attached and idle, with a step 50 ms ago."""
    row = {
        "epoch": 1,
        "step": 7,
        "last_step_ns": NOW_NS - NS_PER_S // 20,
        "num_blocks": 100,
    }
    return row | fields


def scheduler_fields(replicas: list[Fields] | None = None, **fields: Any) -> Fields:
    """Return the scheduler's page of an engine that is ready."""
    rows = [replica_fields()] if replicas is None else replicas
    return {"ready": 1, "num_replicas": len(rows), "replicas": rows} | fields


def refusal_fields(tenant: bytes, reason: RejectionReason, count: int, requests: int = 0) -> Fields:
    """Return the page of an http process that has told a tenant's clients of refusals."""
    counts = np.zeros(MAX_REJECTION_REASONS, np.uint64)
    counts[reason] = count
    row = {"name": tenant, "requests": requests, "rejections": counts}
    return {"num_tenants": 1, "tenants": [row]}


def beat(age_s: float = 0.01, **fields: Any) -> Heartbeat:
    """Return a heartbeat of the first epoch."""
    base = {
        "epoch": 1,
        "state": HeartbeatState.IDLE,
        "stamp_ns": NOW_NS - round(age_s * NS_PER_S),
        "busy_until_ns": 0,
    }
    return Heartbeat(**(base | fields))


def healthy(
    pages: Mapping[str, Page] | None = None, beats: Mapping[str, Heartbeat] | None = None
) -> Boards:
    """Return an engine at work, with some pages or heartbeats replaced."""
    all_pages = {
        "supervisor": page("supervisor", supervisor_fields()),
        "scheduler": page("scheduler", scheduler_fields()),
        **{child: page(child) for child in CHILDREN if child != "scheduler"},
    }
    all_beats = {child: beat() for child in ("supervisor", *CHILDREN)}
    return Boards(NOW_NS, all_pages | dict(pages or {}), all_beats | dict(beats or {}))
