"""What `status`, and other commands when their process is silent, say from the board alone. Pure.

Owns: the shape of these answers, as declared in `ipc.control`. Never knows: sockets, or who asks.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.clock import NS_PER_S
from core.config.processes import SupervisionConfig
from core.errors import RejectionReason
from core.supervision.states import ProcessState
from core.tenancy.classes import CLASS_NAMES
from frontends.boards import Boards, ChildRow, text_of, values_of
from frontends.health import assess, last_step_age_s, oldest_wait_s
from frontends.metrics.engine import leftovers_of
from frontends.metrics.replicas import block_counts, replicas_of
from frontends.metrics.tenants import names_left
from frontends.metrics.vllm import EngineFacts, kv_usage
from frontends.overdue import signs
from frontends.refusals import refusals
from ipc.pages import NO_BUDGET

STALE_S = 1.0
RESERVES = ("reserved_blocks", "reserved_seqs", "reserved_step_tokens")
DONE_FOR_MEMORY = ("recomputed_tokens", "swapped_out_tokens", "swapped_in_tokens")

TENANT_COUNTS = (
    "num_waiting", "num_running", "num_preempted", "held_blocks", "requests",
    "prompt_tokens", "cached_tokens", "generated_tokens", "preemptions",
)  # fmt: skip
TENANT_STANDING = (
    "name", "paused", "removed", "weight", "share_due", "share_used", "num_waiting",
    "oldest_wait_ns", "num_running", "held_blocks", "kv_quota_blocks", "budget_tokens",
    "preemptions",
)  # fmt: skip
STATE_NAMES = {int(state): state.name.lower() for state in ProcessState}

Record = dict[str, object]


def status(boards: Boards, name: str, facts: EngineFacts, limits: SupervisionConfig) -> Record:
    """Return the result of `status`."""
    supervisor = boards.record("supervisor")
    started_ns = int(supervisor["started_ns"])
    return {
        "name": name,
        "model": facts.model_name,
        "uptime_s": round(boards.age_s(started_ns), 3) if started_ns else None,
        "stopping": bool(supervisor["stopping"]),
        "health": assess(boards, limits).as_dict(),
        "hung": hung(boards),
        "load": load(boards),
        "replicas": replicas(boards),
        "processes": processes(boards),
        "tenants": tenants(boards),
        **freshness(boards),
    }


def hung(boards: Boards) -> list[Record]:
    """Return a record per process that looks hung, long before anybody kills it."""
    return [
        {
            "process": each.process,
            "no_sign_s": rounded(each.overdue_s),
            "expected_s": rounded(each.expected_s) or None,
        }
        for each in signs(boards)
        if each.overdue_s
    ]


def freshness(boards: Boards) -> Record:
    """Return how old the scheduler's page is."""
    page = boards.pages.get("scheduler")
    age_s = boards.age_s(page.written_ns) if page is not None else None
    return {"stale": age_s is None or age_s > STALE_S, "as_of_age_s": rounded(age_s)}


def load(boards: Boards) -> Record:
    """Return the engine's load and what it has done so far."""
    page = boards.record("scheduler")
    return {
        **{field: int(page[field]) for field in ("num_waiting", "num_running", "num_preempted")},
        "waiting_tokens": int(page["waiting_tokens"]),
        "oldest_wait_s": rounded(oldest_wait_s(boards)),
        "kv_usage": round(kv_usage(page), 4),
        "prompt_tokens": int(page["prompt_tokens"]),
        "cached_tokens": int(page["cached_tokens"]),
        "generated_tokens": int(page["generated_tokens"]),
        "preemptions": int(page["preemptions"]),
        **{field: int(page[field]) for field in DONE_FOR_MEMORY},
        "steps": int(page["steps"]),
        "last_step_age_s": rounded(last_step_age_s(boards)),
        "draining": bool(page["draining"]),
    }


def replicas(boards: Boards) -> list[Record]:
    """Return a record per replica."""
    return [
        {
            "replica": index,
            "epoch": int(row["epoch"]),
            "step": int(row["step"]),
            "num_running": int(row["num_running"]),
            **{f"{state}_blocks": count for state, count in block_counts(row).items()},
            "draining": bool(row["draining"]),
            "last_step_age_s": since(boards, row, "last_step_ns"),
            "plan_age_s": since(boards, row, "plan_sent_ns"),
        }
        for index, row in enumerate(replicas_of(boards.record("scheduler")))
    ]


def processes(boards: Boards) -> list[Record]:
    """Return a record per process that the supervisor has."""
    return [process(boards, child) for child in boards.children]


def process(boards: Boards, child: ChildRow) -> Record:
    """Return what the supervisor and its own heartbeat say of one process."""
    beat = boards.heartbeats.get(child.id)
    return {
        "process": child.id,
        "pid": child.pid,
        "epoch": child.epoch,
        "state": state_name(child.state),
        "activity": beat.state.name.lower() if beat is not None else None,
        "restarts": child.restarts,
        "fault": child.fault or None,
        "heartbeat_age_s": rounded(boards.age_s(beat.stamp_ns)) if beat else None,
        "directory_version": (beat.directory_version or None) if beat else None,
    }


def state_name(value: int) -> str:
    """Return the name of a process state; a number this version does not know stays a number."""
    return STATE_NAMES.get(value, str(value))


def tenants(boards: Boards) -> list[Record]:
    """Return a record per tenant."""
    page, told = boards.record("scheduler"), refusals(boards)
    rows = page["tenants"][: int(page["num_tenants"])]
    return [
        tenant(text_of(name), counts, told)
        for name, *counts in values_of(rows, ("name", *TENANT_COUNTS))
    ]


def tenant(name: str, counts: Sequence[int], told: Mapping[str, Mapping[str, int]]) -> Record:
    """Return what the scheduler says of one tenant, and what its clients were told."""
    return {
        "tenant": name,
        **dict(zip(TENANT_COUNTS, counts, strict=True)),
        "rejections": dict(told.get(name, {})),
    }


def tenancy(boards: Boards) -> Record:
    """Return the result of `tenants`."""
    page, told = boards.record("scheduler"), refusals(boards)
    rows = page["tenants"][: int(page["num_tenants"])]
    service = max(1, int(page["classes"]["service"].sum()))
    return {
        "classes": [
            class_standing(name, row, service)
            for name, row in zip(CLASS_NAMES, page["classes"], strict=True)
        ],
        "tenants": [
            tenant_standing(dict(zip(TENANT_STANDING, values, strict=True)), told)
            for values in values_of(rows, TENANT_STANDING)
        ],
        "names_left": names_left(boards),
        **freshness(boards),
    }


def class_standing(name: str, row: np.void, service: int) -> Record:
    """Return what a class has and what is kept for it; `service` is that of all classes."""
    return {
        "class": name,
        "paused": bool(row["paused"]),
        "weight": float(row["weight"]),
        "share_since_start": round(int(row["service"]) / service, 4),
        "waiting": int(row["num_waiting"]),
        "running": int(row["num_running"]),
        "kv_held": int(row["held_blocks"]),
        "kv_reserved": int(row["reserved_blocks"]),
        "seqs_reserved": int(row["reserved_seqs"]),
        "step_tokens_reserved": int(row["reserved_step_tokens"]),
    }


def tenant_standing(row: Mapping[str, Any], told: Mapping[str, Mapping[str, int]]) -> Record:
    """Return what a tenant has, and what it is due."""
    name, budget = text_of(row["name"]), row["budget_tokens"]
    return {
        "tenant": name,
        "paused": bool(row["paused"]),
        "removed": bool(row["removed"]),
        "weight": row["weight"],
        "share_due": round(row["share_due"], 4),
        "share_used": round(row["share_used"], 4),
        "waiting": row["num_waiting"],
        "oldest_wait_s": round(row["oldest_wait_ns"] / NS_PER_S, 3),
        "running": row["num_running"],
        "kv_held": row["held_blocks"],
        "kv_quota": row["kv_quota_blocks"],
        "budget_left": None if budget == NO_BUDGET else budget,
        "preempted": row["preemptions"],
        "rejected": dict(told.get(name, {})),
    }


def price(boards: Boards) -> Record:
    """Return the result of `price`."""
    page = boards.record("scheduler")
    computed = sum(int(page[name]) for name in ("prompt_tokens", "generated_tokens"))
    computed += int(page["recomputed_tokens"]) - int(page["cached_tokens"])
    unused = leftovers_of(page)
    whole = max(1, computed + sum(unused.values()))
    return {
        "computed_tokens": computed,
        "unused": [
            {"reason": reason, "tokens": tokens, "share": round(tokens / whole, 4)}
            for reason, tokens in sorted(unused.items(), key=lambda item: -item[1])
        ],
        "again": {name: int(page[name]) for name in ("recomputed_tokens", "swapped_out_tokens")},
        "preemptions": int(page["preemptions"]),
        "refused": {
            r.code: int(page["rejections"][r]) for r in RejectionReason if page["rejections"][r]
        },
        "reserves": [
            reserve(name, row)
            for name, row in zip(CLASS_NAMES, page["classes"], strict=True)
            if any(row[kept] for kept in RESERVES)
        ],
        **freshness(boards),
    }


def reserve(name: str, row: np.void) -> Record:
    """Return what is kept for a class, and what of it is in use."""
    return {
        "class": name,
        "kv_reserved": int(row["reserved_blocks"]),
        "kv_held": int(row["held_blocks"]),
        "seqs_reserved": int(row["reserved_seqs"]),
        "running": int(row["num_running"]),
        "step_tokens_reserved": int(row["reserved_step_tokens"]),
    }


def requests_from_board(boards: Boards, tenant_name: str | None) -> Record:
    """Return the result of `requests` when the scheduler is silent: counts per tenant instead of a
    list."""
    rows = [row for row in tenants(boards) if tenant_name in (None, row["tenant"])]
    fields = ("num_waiting", "num_running", "num_preempted")
    total = sum(int(str(row[field])) for row in rows for field in fields)
    return {"requests": [], "total": total, "tenants": rows, **freshness(boards), "stale": True}


def cache_from_board(boards: Boards) -> Record:
    """Return the result of `cache stats` when the scheduler is silent: nothing by tenant."""
    page = boards.record("scheduler")
    return {
        "replicas": [
            {
                "replica": index,
                "num_blocks": int(row["num_blocks"]),
                "evictable_blocks": int(row["num_evictable_blocks"]),
            }
            for index, row in enumerate(replicas_of(page))
        ],
        "query_tokens": int(page["prefix_queries_tokens"]),
        "hit_tokens": int(page["prefix_hits_tokens"]),
        **freshness(boards),
        "stale": True,
    }


def since(boards: Boards, row: np.void, field: str) -> float | None:
    """Return the age of a stamp, or None if it was never set."""
    return rounded(boards.age_s(int(row[field]))) if row[field] else None


def rounded(value_s: float | None) -> float | None:
    """Return seconds with millisecond precision; None for unknown or endless."""
    return None if value_s is None or math.isinf(value_s) else round(value_s, 3)
