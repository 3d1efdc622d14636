"""`remove-tenant`: its keys open nothing any more; what it has running goes on to its end."""

from ipc.control.arguments import TENANT
from ipc.control.declaration import Command, Destination, Effect
from ipc.control.directory_results import CHANGE_RESULT

COMMAND = Command(
    name="remove-tenant",
    summary="Remove a tenant and its keys; its running requests finish",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    arguments=(TENANT,),
    confirm="Remove {target}?",
    result=CHANGE_RESULT,
)
