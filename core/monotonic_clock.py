"""The one reading of the machine's clock.

CLOCK_MONOTONIC is shared by all processes of a machine, so stamps may be compared between them.
"""

import time


class MonotonicClock:
    """The machine's CLOCK_MONOTONIC, as a `core.clock.Clock`."""

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC, ns."""
        return time.monotonic_ns()
