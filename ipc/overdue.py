"""When a process has given no sign of life for longer than its work explains. Pure.

Owns: how long that is. Never knows: who asks, or what is done about it: the supervisor kills by
limits of its own (`core.supervision`), which are much longer.

    it starts, loads or compiles   it may take as long as it likes
    it has nothing to do           its loop stamps a few times a second; `PATIENCE_S` allows for a
                                   machine without CPU
    it is in a step                `MANY_STEPS` times what is expected of the step, at least
                                   `PATIENCE_S`; its loop is silent for as long, or stamps while a
                                   device does not come to an end
"""

SLOW_ACTIVITIES = ("off", "starting", "loading", "compiling")  # of `ipc.heartbeat.HeartbeatState`
IN_A_STEP = "busy"
PATIENCE_S = 2.0
MANY_STEPS = 10.0


def allowed_step_s(expected_s: float) -> float:
    """Return how long a step may take that was expected to take `expected_s`, 0 = nobody knows."""
    return max(PATIENCE_S, MANY_STEPS * expected_s)


def overdue_s(
    activity: str, silent_s: float, plan_age_s: float = 0.0, expected_s: float = 0.0
) -> float:
    """Return for how long a process that should give a sign has given none, 0 = it is well.

    `activity` is what its loop said last, `silent_s` ago; `plan_age_s` is how long it has had the
    oldest plan that it has not answered (0 = none), `expected_s` how long a step should take.
    """
    if activity in SLOW_ACTIVITIES:
        return 0.0
    step_s = allowed_step_s(expected_s)
    if silent_s > (step_s if activity == IN_A_STEP else PATIENCE_S):
        return silent_s
    return plan_age_s if plan_age_s > step_s else 0.0
