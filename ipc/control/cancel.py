"""`cancel`: end an operation, a request or a tenant's all; running ones at the step boundary."""

from dataclasses import replace

from ipc.control.arguments import ONLY_TENANT, REQUEST
from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="cancel",
    summary="Cancel a request, or all requests of a tenant",
    destination=Destination.SCHEDULER,
    effect=Effect.WRITE,
    while_stopping=True,
    arguments=(
        replace(REQUEST, required=False),
        replace(ONLY_TENANT, help="all requests of this tenant"),
    ),
    exactly_one_of=(("request", "tenant"),),
    confirm="Cancel {target}?",
    result=(
        ResultField(
            "cancelled",
            "integer",
            "requests that were ended or will end at the step boundary; 0 = none was alive",
        ),
    ),
)
