"""How far a process stands back for others on the same cores.

Owns: the two places where that is said. Niceness counts among the processes of one session only,
where the kernel shares its cores out by session first (autogroups, sched(7), the default of most
distributions), and every process of an engine has a session of its own. So who leads a session
tells it the same; without privileges that can be done once in a tenth of a second on the whole
machine.
"""

import os
import time
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")
ATTEMPTS = 10
BETWEEN_ATTEMPTS_S = 0.1


def stand_back(niceness: int, autogroup: Path = AUTOGROUP) -> bool:
    """Go after others by `niceness` (0 to 19), with the whole session if this process leads it.

    Return False if the session stays as it is: it is a shell's, or the kernel knows no such thing.
    """
    os.nice(niceness)
    if os.getsid(0) != os.getpid():
        return False
    for _ in range(ATTEMPTS):
        try:
            autogroup.write_text(str(niceness), encoding="ascii")
        except BlockingIOError:
            time.sleep(BETWEEN_ATTEMPTS_S)
        except OSError:
            return False
        else:
            return True
    return False
