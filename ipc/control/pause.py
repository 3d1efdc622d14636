"""`pause`: start nothing more of a tenant or a class; what runs goes on to its end."""

from ipc.control.arguments import TENANT_OR_CLASS
from ipc.control.declaration import Command, Destination, Effect
from ipc.control.directory_results import CHANGE_RESULT

COMMAND = Command(
    name="pause",
    summary="Start nothing more of a tenant or a class; running requests finish",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    arguments=TENANT_OR_CLASS,
    exactly_one_of=(("tenant", "class"),),
    confirm="Pause {target}?",
    result=CHANGE_RESULT,
)
