"""`status`: what the engine is doing, from the board alone, so that it is always answered."""

from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="status",
    summary="Show health, load, replicas and processes",
    destination=Destination.BOARD,
    effect=Effect.READ,
    result=(
        ResultField("name", "text", "name of the engine"),
        ResultField("model", "text", "model name that clients use"),
        ResultField("uptime_s", "number", "seconds since the engine was started"),
        ResultField("stopping", "boolean", "true after SIGTERM or shutdown"),
        ResultField(
            "health", "record", "live, ready, progress and complete: each ok and its reasons"
        ),
        ResultField(
            "hung",
            "list of records",
            "per process that looks hung: for how long it has given no sign, s, and how long its "
            "step should take, as predicted",
        ),
        ResultField(
            "load",
            "record",
            "waiting, running and preempted requests, tokens so far, KV use, age of the last step",
        ),
        ResultField(
            "replicas",
            "list of records",
            "per replica: epoch, step, running, KV blocks, draining, last step age",
        ),
        ResultField(
            "processes",
            "list of records",
            "per process: pid, epoch, state, restarts, why it does not serve, heartbeat age, "
            "version of the tenant directory that it goes by",
        ),
        ResultField(
            "tenants",
            "list of records",
            "per tenant: waiting, running, KV blocks held, tokens, rejections",
        ),
        ResultField("stale", "boolean", "true if the scheduler's page is older than the limit"),
        ResultField("as_of_age_s", "number", "age of the scheduler's page, seconds"),
    ),
)
