"""`resume`: end a pause."""

from ipc.control.arguments import TENANT_OR_CLASS
from ipc.control.declaration import Command, Destination, Effect
from ipc.control.directory_results import CHANGE_RESULT

COMMAND = Command(
    name="resume",
    summary="Start requests of a paused tenant or class again",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    arguments=TENANT_OR_CLASS,
    exactly_one_of=(("tenant", "class"),),
    confirm="Resume {target}?",
    result=CHANGE_RESULT,
)
