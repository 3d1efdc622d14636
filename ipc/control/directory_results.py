"""What every command answers that changes the tenant directory.

Owns: these result fields. Never knows: which command. A change is in force once every process that
reads the directory goes by its version, and kept once admin worker 0 has it on disk.
"""

from ipc.control.declaration import ResultField

CHANGE_RESULT = (
    ResultField("version", "integer", "version of the tenant directory that has the change"),
    ResultField("before", "any", "what it was"),
    ResultField("after", "any", "what it is now"),
    ResultField("in_force", "boolean", "true: every process goes by this version"),
    ResultField("waiting_for", "list of texts", "processes that do not yet, at the time of answer"),
    ResultField("kept", "boolean", "true: on disk, in force again after a restart of the engine"),
)
