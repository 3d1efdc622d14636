"""`events`: what was decided about requests under pressure; from the scheduler, which keeps it."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)

DEFAULT_EVENTS = 100
MAX_EVENTS = 4096
KINDS = (
    "queue", "reject", "shed", "expire", "fault", "demote", "route", "preempt", "swap", "shorten",
    "restore", "epoch", "prices",
)  # fmt: skip

COMMAND = Command(
    name="events",
    summary="Show what was decided under pressure: queued, shed, preempted, routed, and why",
    destination=Destination.SCHEDULER,
    effect=Effect.READ,
    arguments=(
        Argument(
            name="since",
            kind=ArgumentKind.INTEGER,
            help="from this number on (default: the last ones, of each kind some); `next` of one "
            "answer is the `since` of the next question",
            minimum=0,
            maximum=2**53,
        ),
        Argument(
            name="kind",
            kind=ArgumentKind.TEXT,
            help="only of this kind (default: all)",
            choices=KINDS,
        ),
        Argument(
            name="limit",
            kind=ArgumentKind.INTEGER,
            help=f"at most so many (default {DEFAULT_EVENTS})",
            minimum=1,
            maximum=MAX_EVENTS,
        ),
    ),
    follows=True,
    result=(
        ResultField(
            "events",
            "list of records",
            "per event, oldest first: number, age_s, kind, request_id, operation_id, tenant, "
            "traffic_class, replica, reason, measured, threshold",
        ),
        ResultField("next", "integer", "number after the last event of this answer"),
        ResultField("total", "integer", "events since the scheduler was started, kept or not"),
    ),
)
