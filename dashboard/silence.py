"""Which processes have given no sign of life for longer than their work explains. Pure.

Owns: what of a frame tells that; how long is too long says `ipc.overdue`. What the scheduler says
of an executor's plan counts as of its page, so that a scheduler that is silent accuses nobody else.
"""

from dashboard.frame import Frame, ProcessFrame, ReplicaFrame
from ipc.overdue import overdue_s


def silent_too_long_s(process: ProcessFrame, frame: Frame) -> float:
    """Return for how long a process that should work has given no sign, 0 = it is well."""
    if process.state != "running" or process.heartbeat_age_s is None:
        return 0.0
    replica = replica_of(process, frame)
    if replica is None:
        return overdue_s(process.activity, process.heartbeat_age_s)
    plan_age_s = max(0.0, (replica.plan_age_s or 0.0) - frame.age_s)
    return overdue_s(process.activity, process.heartbeat_age_s, plan_age_s, replica.expected_step_s)


def replica_of(process: ProcessFrame, frame: Frame) -> ReplicaFrame | None:
    """Return the replica that a process is an executor of, None if it is none."""
    kind, *numbers = process.child.split(".")
    if kind != "executor" or int(numbers[0]) >= len(frame.replicas):
        return None
    return frame.replicas[int(numbers[0])]
