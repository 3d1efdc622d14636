"""When a process has been silent for so long that somebody should know. Pure.

A loop that has nothing to do stamps its heartbeat a few times a second; one in a step does not
until the step ends. So the second is measured by how long steps take.
"""

from dashboard.frame import ProcessFrame
from dashboard.history import View

OLD_HEARTBEAT_S = 1.0
SLOW_STEP_S = 2.0
MANY_STEPS = 4.0  # so many times what most steps take is no longer a step
SLOW_ACTIVITIES = ("starting", "loading", "compiling")


def allowed_s(process: ProcessFrame, view: View) -> float:
    """Return how long a process may be silent before it looks hung."""
    if process.activity != "busy":
        return OLD_HEARTBEAT_S
    return allowed_step_s(view)


def allowed_step_s(view: View) -> float:
    """Return how long a step may take before it looks as if it never ended."""
    return max(SLOW_STEP_S, MANY_STEPS * (view.step.p50_s or 0.0))


def looks_hung(process: ProcessFrame, view: View) -> bool:
    """Tell whether a process that should work has been silent for too long."""
    if process.state != "running" or process.activity in SLOW_ACTIVITIES:
        return False
    return (process.heartbeat_age_s or 0.0) > allowed_s(process, view)
