"""`dump`: a support bundle, without a prompt or a key in it; from an admin worker alone."""

from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="dump",
    summary="Write all that helps to understand a fault, without prompts and keys",
    destination=Destination.WORKER,
    effect=Effect.READ,
    saves_file=True,
    result=(
        ResultField("versions", "record", "of Headrace and the packages that matter most"),
        ResultField("platform", "record", "Python and system"),
        ResultField("config", "record", "what the engine was started with, without keys"),
        ResultField("boards", "record", "the page of each process: epoch, age, all its numbers"),
        ResultField("heartbeats", "record", "the heartbeat line of each process"),
        ResultField("audit", "list of records", "the last commands"),
        ResultField("logs", "record", "the last log lines of each process"),
        ResultField("stacks", "record", "where the threads of each process are"),
    ),
)
