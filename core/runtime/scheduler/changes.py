"""Control commands that change what the scheduler does: `cancel`, `preempt`, `drain`, `undrain`,
`cache drop`.

Owns: the events that a command becomes, and its answer. Never knows: what the engine core makes of
an event. Each is idempotent: what is already so stays so, and the answer says it.
"""

from core.request import RequestStatus
from core.runtime.scheduler.question import Question, Record
from core.scheduler import events as ev
from ipc.control.declaration import NotFoundError


def cancel(question: Question) -> Record:
    """End requests by operation id or number, compared whole, or all of a tenant."""
    wanted, tenant = question.text("request"), question.tenant()
    if wanted is not None:
        views = question.named(wanted)
        events: list[ev.Event] = [ev.Abort(view.request_id, question.now_ns) for view in views]
    else:
        assert tenant is not None
        views = question.live(tenant)
        events = [ev.CancelTenant(tenant)]
    question.core.on_events(events, question.now_ns)
    return {"cancelled": len(views)}


def preempt(question: Question) -> Record:
    """Let running requests give back row and memory; each returns to its place in the queue."""
    wanted = str(question.args["request"])
    views = question.named(wanted)
    if not views:
        raise NotFoundError(f"preempt: no live request is called {wanted!r}: see `requests`")
    running = [view for view in views if view.status is RequestStatus.RUNNING]
    events = [ev.Preempt(view.request_id) for view in running]
    question.core.on_events(events, question.now_ns)
    return {"preempted": len(running), "blocks": sum(view.num_blocks for view in running)}


def drain(question: Question) -> Record:
    """Take no new requests, on one replica or at all."""
    return _set_draining(question, True)


def undrain(question: Question) -> Record:
    """Take new requests again."""
    return _set_draining(question, False)


def cache_drop(question: Question) -> Record:
    """Forget cached prefixes, of one tenant or all; blocks in use stay with their requests."""
    tenant, core = question.tenant(), question.core
    before = sum(each.num_cached_blocks for each in core.cache_statistics(tenant))
    core.on_events([ev.DropCache(tenant)], question.now_ns)
    return {"dropped_blocks": before}


def _set_draining(question: Question, draining: bool) -> Record:
    core = question.core
    if "replica" not in question.args:
        before = core.is_draining
        core.on_events([ev.Drain() if draining else ev.Undrain()], question.now_ns)
        return {"draining": draining, "before": before}
    index = question.number("replica", 0)
    replicas = core.statistics().replicas
    if index >= len(replicas):
        raise NotFoundError(f"there is no replica {index}: the last one is {len(replicas) - 1}")
    event = ev.DrainReplica(index) if draining else ev.UndrainReplica(index)
    core.on_events([event], question.now_ns)
    return {"draining": draining, "before": replicas[index].draining}
