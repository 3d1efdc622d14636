"""The answers to `show` and `events`: all that is known of a request and why it waits, and what was
decided under pressure.

Owns: the shape of the answers, as declared in `ipc.control`. Never knows: how a reason came about;
policy and scheduler say it.
"""

from collections.abc import Mapping

from core.clock import NS_PER_MS, NS_PER_S
from core.engine_core import EngineCore
from core.policy.base import Wait
from core.scheduler.decisions import Decision
from core.scheduler.statistics import RequestView
from ipc.control.declaration import ArgumentError

Record = dict[str, object]


def show(core: EngineCore, wanted: str, operations: Mapping[int, str], now_ns: int) -> Record:
    """Return the records of an operation's requests, or of one request by its number."""
    ids = [i for i, operation in operations.items() if is_called(wanted, i, operation)]
    if not ids and wanted.isdecimal():
        ids = [int(wanted)]
    views = [view for i in ids if (view := core.request(i)) is not None]
    if not views:
        raise ArgumentError(f"show: no live request is called {wanted!r}: `requests` lists them")
    return {"requests": [_record(core, view, operations, now_ns) for view in views]}


def is_called(wanted: str, request_id: int, operation_id: str | None) -> bool:
    """Tell whether a person means this request by `wanted`: its number, or its operation's id, as
    it is or with the word and dash that clients see before it.
    """
    return wanted == str(request_id) or wanted.rpartition("-")[2] == operation_id


def events(
    core: EngineCore, since: int | None, limit: int, operations: Mapping[int, str], now_ns: int
) -> Record:
    """Return decisions from number `since` on, or the last ones."""
    total = core.num_decisions
    first = max(0, total - limit) if since is None else since
    decisions = core.decisions(first, limit)
    return {
        "events": [_event(each, operations, now_ns) for each in decisions],
        "next": decisions[-1].number + 1 if decisions else total,
        "total": total,
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
        "replica": decision.replica,
        "reason": decision.reason,
        "measured": decision.measured,
        "threshold": decision.threshold,
    }


def _record(
    core: EngineCore, view: RequestView, operations: Mapping[int, str], now_ns: int
) -> Record:
    started = view.first_start_ns
    return {
        "request_id": view.request_id,
        "operation_id": operations.get(view.request_id, ""),
        "tenant": view.tenant,
        "traffic_class": view.traffic_class,
        "status": view.status.name.lower(),
        "replica": view.replica,
        "age_s": (now_ns - view.arrival_ns) / NS_PER_S,
        "waited_s": ((started or now_ns) - view.arrival_ns) / NS_PER_S,
        "prompt_len": view.num_prompt_tokens,
        "num_cached_tokens": view.num_cached_tokens,
        "num_computed_tokens": view.num_computed_tokens,
        "num_output_tokens": view.num_output_tokens,
        "max_tokens": view.max_tokens,
        "num_blocks": view.num_blocks,
        "num_preemptions": view.num_preemptions,
        "ttft_deadline_in_ms": _in_ms(view.ttft_deadline_ns, now_ns),
        "queue_deadline_in_ms": _in_ms(view.queue_deadline_ns, now_ns),
        **_wait(core.why(view.request_id), now_ns),
    }


def _wait(wait: Wait | None, now_ns: int) -> Record:
    """Say what holds a waiting request back; nothing of one that runs."""
    if wait is None:
        return {"blocked": None}
    return {
        "blocked": wait.blocked.name.lower(),
        "measured": wait.measured,
        "threshold": wait.threshold,
        "place": wait.place,
        "predicted_start_in_ms": _in_ms(wait.start_ns, now_ns),
    }


def _in_ms(time_ns: int, now_ns: int) -> float | None:
    return (time_ns - now_ns) / NS_PER_MS if time_ns else None
