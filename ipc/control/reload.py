"""`reload`: the configuration file is read again; all that may change at run time, or nothing."""

from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="reload",
    summary="Read the configuration file again and apply what may change while the engine runs",
    destination=Destination.SUPERVISOR,
    effect=Effect.WRITE,
    confirm="Apply the configuration file of engine {name}?",
    result=(
        ResultField("changed", "list of texts", "key paths that the file says otherwise now"),
        ResultField("needs_restart", "list of texts", "key paths that wait for the next start"),
        ResultField("version", "integer", "version of the tenant directory that has the changes"),
        ResultField("in_force", "boolean", "true: every process goes by this version"),
        ResultField("waiting_for", "list of texts", "processes that do not yet"),
        ResultField("kept", "boolean", "true: what runs is in force again after a restart"),
    ),
)
