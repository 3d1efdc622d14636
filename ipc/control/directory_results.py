"""What every command answers that changes the tenant directory.

Owns: these result fields. Never knows: which command. A change is in force once every process that
reads the directory goes by its version.
"""

from ipc.control.declaration import ResultField

KEPT = ResultField(
    "kept", "boolean", "true: it outlives the engine; false: the state directory cannot be written"
)
CHANGE_RESULT = (
    ResultField("version", "integer", "version of the tenant directory that has the change"),
    ResultField("before", "any", "what it was"),
    ResultField("after", "any", "what it is now"),
    ResultField("in_force", "boolean", "true: every process goes by this version"),
    ResultField("waiting_for", "list of texts", "processes that do not yet, at the time of answer"),
)
