"""How many files a process may have open, raised to what its connections need.

Owns: the room for everything that is no connection. Never knows: who connects.
"""

import resource

SPARE_FDS = 256


def raise_fd_limit(num_connections: int) -> None:
    """Allow so many connections beside the process's other files, as far as this user may."""
    num_fds = num_connections + SPARE_FDS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_fds if hard == resource.RLIM_INFINITY else min(num_fds, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
