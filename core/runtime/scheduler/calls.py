"""Control commands that the scheduler answers: `requests`, `show`, `events`, `cancel`, `drain`,
`undrain`, `record-trace`.

Owns: the check of the arguments, the events a command becomes, and its answer. Never knows:
sockets. A command is applied between two steps; its answer names the step boundary.
"""

from collections.abc import Mapping

from core.clock import NS_PER_S
from core.engine_core import EngineCore
from core.runtime.scheduler.insight import events, is_called, show
from core.scheduler.events import (
    Abort,
    CancelTenant,
    Drain,
    DrainReplica,
    Event,
    Undrain,
    UndrainReplica,
)
from core.scheduler.statistics import RequestView
from core.scheduler.trace_log import COLUMNS
from ipc.control.declaration import ArgumentError, ReplyCode
from ipc.control.events import DEFAULT_EVENTS
from ipc.control.record_trace import DEFAULT_ROWS
from ipc.control.registry import COMMANDS
from ipc.messages import ControlCall, ControlReply

DEFAULT_LIMIT = 1000
NS_PER_US = 1000
OWN_COMMANDS = ("requests", "show", "events", "cancel", "drain", "undrain", "record-trace")


def answer(
    call: ControlCall, core: EngineCore, operations: Mapping[int, str], now_ns: int
) -> ControlReply:
    """Carry out a command and return its reply; `operations` has the operation of each request."""
    if call.command not in OWN_COMMANDS:
        message = f"the scheduler knows no command {call.command!r}"
        return refusal(call, message, ReplyCode.UNKNOWN_COMMAND, now_ns)
    try:
        args = COMMANDS[call.command].check(call.args)
        result = _carry_out(call.command, args, core, operations, now_ns)
    except ArgumentError as error:
        return refusal(call, str(error), ReplyCode.BAD_ARGUMENT, now_ns)
    step = max(replica.step for replica in core.statistics().replicas)
    return ControlReply(call.call_id, result=result, step=step, as_of_ns=now_ns)


def refusal(call: ControlCall, message: str, code: ReplyCode, now_ns: int) -> ControlReply:
    """Return the reply to a call that was not carried out."""
    return ControlReply(call.call_id, error=message, code=code, as_of_ns=now_ns)


def _carry_out(
    command: str,
    args: Mapping[str, object],
    core: EngineCore,
    operations: Mapping[int, str],
    now_ns: int,
) -> dict[str, object]:
    match command:
        case "requests":
            return _requests(args, core, operations, now_ns)
        case "show":
            return show(core, str(args["request"]), operations, now_ns)
        case "events":
            since = int(str(args["since"])) if "since" in args else None
            limit = int(str(args.get("limit", DEFAULT_EVENTS)))
            return events(core, since, limit, operations, now_ns)
        case "cancel":
            return _cancel(args, core, operations, now_ns)
        case "record-trace":
            return _record_trace(args, core)
        case _:
            return _drain(args, core, command == "drain", now_ns)


def _requests(
    args: Mapping[str, object], core: EngineCore, operations: Mapping[int, str], now_ns: int
) -> dict[str, object]:
    limit = int(str(args.get("limit", DEFAULT_LIMIT)))
    views = _views(core, args.get("tenant"))
    listed = [_record(view, operations, now_ns) for view in views[:limit]]
    return {"requests": listed, "total": len(views)}


def _cancel(
    args: Mapping[str, object], core: EngineCore, operations: Mapping[int, str], now_ns: int
) -> dict[str, object]:
    """End requests by operation id or number, compared whole, or all of a tenant."""
    views = _views(core, args.get("tenant"))
    if "request" in args:
        wanted = str(args["request"])
        views = [
            view
            for view in views
            if is_called(wanted, view.request_id, operations.get(view.request_id))
        ]
        events: list[Event] = [Abort(view.request_id, now_ns) for view in views]
    else:
        events = [CancelTenant(str(args["tenant"]))]
    core.on_events(events, now_ns)
    return {"cancelled": len(views)}


def _drain(
    args: Mapping[str, object], core: EngineCore, draining: bool, now_ns: int
) -> dict[str, object]:
    if "replica" not in args:
        before = core.is_draining
        core.on_events([Drain() if draining else Undrain()], now_ns)
        return {"draining": draining, "before": before}
    index = int(str(args["replica"]))
    replicas = core.statistics().replicas
    if index >= len(replicas):
        raise ArgumentError(f"there is no replica {index}: the last one is {len(replicas) - 1}")
    event = DrainReplica(index) if draining else UndrainReplica(index)
    core.on_events([event], now_ns)
    return {"draining": draining, "before": replicas[index].draining}


def _record_trace(args: Mapping[str, object], core: EngineCore) -> dict[str, object]:
    """Return a piece of what has ended; rows that are gone are passed over. To tell the machine
    takes a while, so only a piece without rows does.
    """
    log = core.trace_log
    first = max(int(str(args.get("first", 0))), log.first_row)
    rows = log.rows(first, int(str(args.get("limit", DEFAULT_ROWS))))
    return {
        "rows": rows,
        "columns": list(COLUMNS),
        "first": first,
        "next": first + len(rows),
        "total": log.num_rows,
        "machine": None if rows else _machine(core),
    }


def _machine(core: EngineCore) -> dict[str, object] | None:
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


def _views(core: EngineCore, tenant: object) -> list[RequestView]:
    return core.requests(core.num_requests, None if tenant is None else str(tenant))


def _record(view: RequestView, operations: Mapping[int, str], now_ns: int) -> dict[str, object]:
    return {
        "request_id": view.request_id,
        "operation_id": operations.get(view.request_id, ""),
        "tenant": view.tenant,
        "traffic_class": view.traffic_class,
        "status": view.status.name.lower(),
        "replica": view.replica,
        "prompt_len": view.num_prompt_tokens,
        "num_output_tokens": view.num_output_tokens,
        "max_tokens": view.max_tokens,
        "num_preemptions": view.num_preemptions,
        "age_s": (now_ns - view.arrival_ns) / NS_PER_S,
    }
