"""The highest load that a policy carries: bisection over runs.

Owns: the search and its bracket. Never knows: what is run; it is handed a function from a load to
"carried or not", which should be monotone but, with few requests, may not quite be.
"""

from collections.abc import Callable
from math import inf

MAX_STEPS = 16  # of the bracket
FLOOR = 0.1  # of the guess: what carries less carries nothing that is worth a search
STRIDE = 0.05


def capacity(
    carries: Callable[[float], bool], guess: float, tolerance: float, stride: float = STRIDE
) -> tuple[float, float]:
    """Return the highest load carried and the lowest not carried, at most `tolerance` apart.

    The bracket widens from `guess` by `stride`, then by twice as much each time, until both ends
    are known. 0.0 or infinity comes back for an end that was not found, 0.0 also for one below
    FLOOR.
    """
    low, high, load = 0.0, inf, guess
    for _ in range(MAX_STEPS):
        if carries(load):
            low = load
        else:
            high = load
        if (low > 0 and high < inf) or high <= FLOOR * guess:
            break
        load = load * (1 + stride) if low > 0 else load / (1 + stride)
        stride *= 2
    while low > 0 and low * (1 + tolerance) < high < inf:
        middle = (low + high) / 2
        if carries(middle):
            low = middle
        else:
            high = middle
    return low, high
