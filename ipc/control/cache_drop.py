"""`cache drop`: cached prefixes are forgotten; blocks in use stay with their requests."""

from ipc.control.arguments import ONLY_TENANT
from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="cache-drop",
    group="cache",
    summary="Forget cached prefixes, of one tenant or all",
    destination=Destination.SCHEDULER,
    effect=Effect.WRITE,
    arguments=(ONLY_TENANT,),
    confirm="Drop the prefix cache of {target}?",
    result=(ResultField("dropped_blocks", "integer", "blocks that cannot be found any more"),),
)
