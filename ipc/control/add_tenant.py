"""`add-tenant`: a new tenant with default settings; the key itself never travels."""

from ipc.control.arguments import DIGEST, TENANT
from ipc.control.declaration import Command, Destination, Effect
from ipc.control.directory_results import CHANGE_RESULT

COMMAND = Command(
    name="add-tenant",
    summary="Add a tenant with default settings",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    arguments=(TENANT, DIGEST),
    result=CHANGE_RESULT,
)
