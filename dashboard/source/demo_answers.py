"""What the toy engine answers to control commands, in the shape of the real answers.

Owns: a few commands; the others are refused. Those that change a tenant or a class do change the
toy.
"""

from collections.abc import Mapping

from dashboard.source.base import ControlError, Record
from dashboard.source.demo_engine import NUM_BLOCKS, DemoEngine, DemoEvent, DemoRequest, DemoTenant


def carry_out(engine: DemoEngine, command: str, args: Mapping[str, object]) -> Record:
    """Return the result of a command; raises ControlError."""
    match command:
        case "requests":
            return _requests(engine, args)
        case "show":
            return _show(engine, str(args["request"]))
        case "events":
            return _events(engine, args)
        case "pause" | "resume":
            return _pause(engine, args, paused=command == "pause")
        case "cancel":
            return _cancel(engine, args)
        case "drain" | "undrain":
            before, engine.is_draining = engine.is_draining, command == "drain"
            return {"draining": engine.is_draining, "before": before}
        case "set":
            return _set(engine, str(args["path"]), str(args["value"]))
        case _:
            raise ControlError(f"{command}: a demonstration cannot do this")


def _requests(engine: DemoEngine, args: Mapping[str, object]) -> Record:
    both = [(request, "running") for request in engine.running]
    both += [(r, "preempted" if r.preemptions else "waiting") for r in engine.waiting]
    wanted = [each for each in both if args.get("tenant") in (None, each[0].tenant)]
    limit = int(str(args.get("limit", 1000)))
    rows = [_request(engine, request, status) for request, status in wanted[:limit]]
    return {"requests": rows, "total": len(wanted)}


def _request(engine: DemoEngine, request: DemoRequest, status: str) -> Record:
    return {
        "request_id": request.number,
        "operation_id": f"demo-{request.number:06d}",
        "tenant": request.tenant,
        "traffic_class": request.traffic_class,
        "status": status,
        "replica": 0 if status == "running" else None,
        "prompt_len": request.prompt,
        "num_output_tokens": int(request.output),
        "max_tokens": request.max_tokens,
        "num_preemptions": request.preemptions,
        "age_s": engine.now_s - request.arrived_s,
    }


def _show(engine: DemoEngine, wanted: str) -> Record:
    for request in (*engine.running, *engine.waiting):
        if wanted in (str(request.number), f"demo-{request.number:06d}"):
            is_running = request in engine.running
            record = _request(engine, request, "running" if is_running else "waiting")
            waited_s = (request.started_s or engine.now_s) - request.arrived_s
            record |= {
                "waited_s": waited_s,
                "num_cached_tokens": request.prompt // 4,
                "num_computed_tokens": request.prompt + int(request.output) if is_running else 0,
                "num_blocks": request.blocks if is_running else 0,
                "blocked": None if is_running else engine.why(request),
            }
            record["timeline"] = _timeline(engine, request)
            if not is_running:
                is_ahead = record["blocked"] == "window"
                record |= {
                    "measured": 1300 if is_ahead else request.blocks,
                    "threshold": 1000 if is_ahead else NUM_BLOCKS - engine.held_blocks,
                    "place": engine.waiting.index(request),
                    "predicted_start_in_ms": 850.0,
                    "soonest_start_in_ms": 500.0,
                    "latest_start_in_ms": 1200.0,
                    "is_doubtful": False,
                }
            return {"requests": [record]}
    raise ControlError(f"show: no live request is called {wanted!r}")


def _timeline(engine: DemoEngine, request: DemoRequest) -> list[Record]:
    moments = [(request.arrived_s, "arrived", "")]
    moments += [(request.started_s, "started", "")] if request.started_s else []
    moments += [(e.at_s, e.kind, e.reason) for e in engine.events if e.request is request]
    return [
        {"age_s": engine.now_s - at_s, "what": what, "reason": reason}
        for at_s, what, reason in sorted(moments)
    ]


def _events(engine: DemoEngine, args: Mapping[str, object]) -> Record:
    limit = int(str(args.get("limit", 100)))
    first = int(str(args.get("since", max(0, engine.num_events - limit))))
    wanted = [each for each in engine.events if args.get("kind") in (None, each.kind)]
    chosen = [event for event in wanted if event.number >= first][:limit]
    following = chosen[-1].number + 1 if chosen else engine.num_events
    return {
        "events": [_event(engine, event) for event in chosen],
        "next": following,
        "total": engine.num_events,
    }


def _event(engine: DemoEngine, event: DemoEvent) -> Record:
    request = event.request
    return {
        "number": event.number,
        "age_s": engine.now_s - event.at_s,
        "kind": event.kind,
        "request_id": request.number,
        "operation_id": f"demo-{request.number:06d}",
        "tenant": request.tenant,
        "traffic_class": request.traffic_class,
        "replica": 0,
        "reason": event.reason,
        "measured": event.measured,
        "threshold": event.threshold,
    }


def _pause(engine: DemoEngine, args: Mapping[str, object], *, paused: bool) -> Record:
    if "class" in args:
        name = str(args["class"])
        before = name in engine.paused_classes
        (engine.paused_classes.add if paused else engine.paused_classes.discard)(name)
    else:
        tenant = _tenant_called(engine, str(args["tenant"]))
        before, tenant.paused = tenant.paused, paused
    return {"before": before, "after": paused, "in_force": True, "waiting_for": []}


def _cancel(engine: DemoEngine, args: Mapping[str, object]) -> Record:
    wanted = args.get("request")
    chosen = [
        request
        for request in (*engine.running, *engine.waiting)
        if args.get("tenant") == request.tenant
        or wanted in (str(request.number), f"demo-{request.number:06d}")
    ]
    engine.cancel(chosen)
    return {"cancelled": len(chosen)}


def _set(engine: DemoEngine, path: str, value: str) -> Record:
    room, _, rest = path.partition(".")
    name, _, key = rest.rpartition(".")
    if room != "tenants" or key != "weight":
        raise ControlError("set: a demonstration knows only tenants.NAME.weight")
    tenant = _tenant_called(engine, name)
    try:
        before, tenant.weight = tenant.weight, float(value)
    except ValueError as error:
        raise ControlError(f"set: {path} = {value!r} is not a number") from error
    return {"before": before, "after": tenant.weight, "in_force": True, "waiting_for": []}


def _tenant_called(engine: DemoEngine, name: str) -> DemoTenant:
    if name not in engine.tenants:
        raise ControlError(f"there is no tenant {name!r}")
    return engine.tenants[name]
