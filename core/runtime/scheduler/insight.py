"""Control commands that only look: `requests`, `show`, `events`, `record-trace`, `cache stats`.

Owns: the shape of the answers, as declared in `ipc.control`. Never knows: how a reason came about;
policy and scheduler say it.
"""

from collections.abc import Mapping

from core.clock import NS_PER_S
from core.engine_core import EngineCore
from core.policy.base import Wait
from core.runtime.scheduler.question import Question, Record
from core.scheduler.decisions import Decision, DecisionKind
from core.scheduler.statistics import RequestView
from core.scheduler.trace_log import COLUMNS
from ipc.control.declaration import NotFoundError
from ipc.control.events import DEFAULT_EVENTS
from ipc.control.record_trace import DEFAULT_ROWS, MAX_ROWS

DEFAULT_LIMIT = 1000
NS_PER_US = 1000
KINDS = {kind.label: kind for kind in DecisionKind}


def requests(question: Question) -> Record:
    """Return the live requests."""
    views = question.live(question.tenant())
    listed = views[: question.number("limit", DEFAULT_LIMIT)]
    return {"requests": [_row(question, view) for view in listed], "total": len(views)}


def show(question: Question) -> Record:
    """Return the records of an operation's requests, or of one request by its number."""
    wanted = str(question.args["request"])
    views = question.named(wanted)
    if not views:
        raise NotFoundError(f"show: no live request is called {wanted!r}: `requests` lists them")
    return {"requests": [_whole(question, view) for view in views]}


def events(question: Question) -> Record:
    """Return decisions from number `since` on, or the last ones; of one kind or all."""
    core, total = question.core, question.core.num_decisions
    limit, word = question.number("limit", DEFAULT_EVENTS), question.text("kind")
    since = question.number("since", 0) if "since" in question.args else None
    decisions = core.decisions(since, limit, None if word is None else KINDS[word])
    return {
        "events": [_event(each, question.operations, question.now_ns) for each in decisions],
        "next": decisions[-1].number + 1 if decisions else total,
        "total": total,
    }


def record_trace(question: Question) -> Record:
    """Return a piece of what has ended; rows that are gone are passed over. To tell the machine
    takes a while, so only a piece without rows does.
    """
    log = question.core.trace_log
    first = max(question.number("first", 0), log.first_row)
    rows = log.rows(first, min(MAX_ROWS, question.number("limit", DEFAULT_ROWS)))
    return {
        "rows": rows,
        "columns": list(COLUMNS),
        "first": first,
        "next": first + len(rows),
        "total": log.num_rows,
        "machine": None if rows else _machine(question.core),
    }


def cache_stats(question: Question) -> Record:
    """Return what is cached of prompts and outputs, by replica, of one tenant or all."""
    tenant, core = question.tenant(), question.core
    metering = core.metering
    return {
        "replicas": [
            {
                "replica": each.replica,
                "num_blocks": each.num_blocks,
                "cached_blocks": each.num_cached_blocks,
                "evictable_blocks": each.num_evictable_blocks,
            }
            for each in core.cache_statistics(tenant)
        ],
        "query_tokens": metering.prefix_queries_tokens,
        "hit_tokens": metering.prefix_hits_tokens,
    }


def _machine(core: EngineCore) -> Record | None:
    """Return what the steps so far say of the machine, None if they were too few."""
    machine = core.trace_log.steps.machine()
    if machine is None:
        return None
    return {
        "basis": list(machine.basis),
        "sigma": machine.sigma,
        "overhead_us": machine.overhead_ns / NS_PER_US,
        "num_kv_blocks": max(each.pool.num_blocks for each in core.statistics().replicas),
        "block_size": core.settings.block_size,
    }


def _event(decision: Decision, operations: Mapping[int, str], now_ns: int) -> Record:
    return {
        "number": decision.number,
        "age_s": (now_ns - decision.now_ns) / NS_PER_S,
        "kind": decision.kind.label,
        "request_id": decision.request_id,
        "operation_id": operations.get(decision.request_id, ""),
        "tenant": decision.tenant,
        "traffic_class": decision.traffic_class,
        "replica": _replica(decision.replica),
        "reason": decision.reason,
        "measured": decision.measured,
        "threshold": decision.threshold,
    }


def _replica(index: int) -> int | None:
    """Return a replica as answers have it: None is none."""
    return index if index >= 0 else None


def _identity(question: Question, view: RequestView) -> Record:
    return {
        "request_id": view.request_id,
        "operation_id": question.operations.get(view.request_id, ""),
        "tenant": view.tenant,
        "traffic_class": view.traffic_class,
        "status": view.status.name.lower(),
        "replica": _replica(view.replica),
    }


def _row(question: Question, view: RequestView) -> Record:
    return {
        **_identity(question, view),
        "prompt_len": view.num_prompt_tokens,
        "num_output_tokens": view.num_output_tokens,
        "max_tokens": view.max_tokens,
        "num_preemptions": view.num_preemptions,
        "age_s": (question.now_ns - view.arrival_ns) / NS_PER_S,
    }


def _whole(question: Question, view: RequestView) -> Record:
    now_ns = question.now_ns
    return {
        **_identity(question, view),
        "age_s": (now_ns - view.arrival_ns) / NS_PER_S,
        "waited_s": ((view.first_start_ns or now_ns) - view.arrival_ns) / NS_PER_S,
        "prompt_len": view.num_prompt_tokens,
        "num_cached_tokens": view.num_cached_tokens,
        "num_computed_tokens": view.num_computed_tokens,
        "num_output_tokens": view.num_output_tokens,
        "max_tokens": view.max_tokens,
        "num_blocks": view.num_blocks,
        "num_preemptions": view.num_preemptions,
        "ttft_deadline_in_ms": question.in_ms(view.ttft_deadline_ns),
        "queue_deadline_in_ms": question.in_ms(view.queue_deadline_ns),
        **_wait(question, question.core.why(view.request_id)),
        "timeline": _timeline(question, view),
    }


def _timeline(question: Question, view: RequestView) -> list[Record]:
    """Return what happened to a request, oldest first: its arrival, its start, its first token, and
    every decision about it that is still kept.
    """
    stamps = (
        (view.arrival_ns, "arrived"),
        (view.first_start_ns, "started"),
        (view.first_token_ns, "first token"),
    )
    moments = [(time_ns, what, "") for time_ns, what in stamps if time_ns]
    moments += [
        (each.now_ns, each.kind.label, each.reason)
        for each in question.core.decisions_about(view.request_id)
    ]
    return [
        {"age_s": (question.now_ns - time_ns) / NS_PER_S, "what": what, "reason": reason}
        for time_ns, what, reason in sorted(moments)
    ]


def _wait(question: Question, wait: Wait | None) -> Record:
    """Say what holds a waiting request back; nothing of one that runs."""
    if wait is None:
        return {"blocked": None}
    return {
        "blocked": wait.blocked.name.lower(),
        "measured": wait.measured,
        "threshold": wait.threshold,
        "place": wait.place,
        "predicted_start_in_ms": question.in_ms(wait.forecast.start_ns),
        "soonest_start_in_ms": question.in_ms(wait.forecast.soonest_ns),
        "latest_start_in_ms": question.in_ms(wait.forecast.latest_ns),
        "is_doubtful": wait.forecast.is_doubtful,
    }
